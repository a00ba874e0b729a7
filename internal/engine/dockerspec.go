package engine

import (
	"fmt"
	"strings"
	"syscall"

	containertypes "github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// config, hostConfig and networkingConfig are the only place that translates a Spec into Docker's
// terms.
func (s Spec) config() *containertypes.Config {
	return &containertypes.Config{
		Image:      s.Image,
		Hostname:   s.Hostname,
		User:       userOf(s.Process),
		Env:        s.Process.Env,
		WorkingDir: s.Process.Cwd,
		// Docker closes stdin when the attached client has gone.
		OpenStdin: s.Stdin, StdinOnce: true,
		Entrypoint:  s.Process.Args,
		Cmd:         []string{},
		StopSignal:  signalName(s.StopSignal),
		Healthcheck: &containertypes.HealthConfig{Test: []string{"NONE"}},
		Labels:      s.Labels,

		NetworkDisabled: s.RuntimeLoopback,
	}
}

// signalName returns a signal in Docker's form; empty for 0.
func signalName(number syscall.Signal) string {
	if number == 0 {
		return ""
	}
	return unix.SignalName(number)
}

// userOf returns a process's user in Docker's form.
func userOf(p specs.Process) string { return fmt.Sprint(p.User.UID, ":", p.User.GID) }

func (s Spec) hostConfig() *containertypes.HostConfig {
	host := &containertypes.HostConfig{
		Runtime:        s.Runtime,
		NetworkMode:    "none",
		ReadonlyRootfs: s.ReadonlyRoot,
		CapDrop:        s.Capabilities.Drop,
		CapAdd:         s.Capabilities.Add,
		SecurityOpt:    s.securityOpt(),
		IpcMode:        containertypes.IPCModePrivate,
		// A Docker before 20.10 (API 1.41) does not know it.
		CgroupnsMode:  containertypes.CgroupnsModePrivate,
		ShmSize:       s.Shm,
		LogConfig:     containertypes.LogConfig{Type: "none"},
		RestartPolicy: containertypes.RestartPolicy{Name: containertypes.RestartPolicyDisabled},
		Resources:     s.resources(),
		Sysctls:       s.Sysctl,
	}
	if adj := s.Process.OOMScoreAdj; adj != nil {
		host.OomScoreAdj = *adj
	}
	if s.Net != nil {
		host.NetworkMode = containertypes.NetworkMode(s.Net.Network)
		host.DNS = []string{s.Net.Resolver}
	}
	for _, m := range s.Mounts {
		if m.Type != Tmpfs {
			host.Mounts = append(host.Mounts, s.mount(m))
			continue
		}
		if host.Tmpfs == nil {
			host.Tmpfs = map[string]string{}
		}
		host.Tmpfs[m.Destination] = strings.Join(m.Options, ",")
	}
	return host
}

// securityOpt returns Docker's own measures.
func (s Spec) securityOpt() (options []string) {
	if s.Process.NoNewPrivileges {
		options = append(options, "no-new-privileges")
	}
	if s.Seccomp != "" {
		options = append(options, "seccomp="+s.Seccomp)
	}
	if s.Process.ApparmorProfile != "" {
		options = append(options, "apparmor="+s.Process.ApparmorProfile)
	}
	return options
}

// billion is how many of Docker's CPU units make one CPU.
const billion = 1_000_000_000

func (s Spec) resources() (r containertypes.Resources) {
	r.CgroupParent = s.CgroupParent
	if cpu := s.Resources.CPU; cpu != nil && cpu.Quota != nil && cpu.Period != nil {
		r.NanoCPUs = *cpu.Quota * (billion / int64(*cpu.Period))
	}
	if memory := s.Resources.Memory; memory != nil && memory.Limit != nil {
		r.Memory = *memory.Limit
	}
	if memory := s.Resources.Memory; memory != nil && memory.Swap != nil {
		r.MemorySwap = *memory.Swap
	}
	if pids := s.Resources.Pids; pids != nil {
		r.PidsLimit = &pids.Limit
	}
	for _, l := range s.Process.Rlimits {
		name := strings.ToLower(strings.TrimPrefix(l.Type, "RLIMIT_"))
		ulimit := &containertypes.Ulimit{Name: name, Soft: int64(l.Soft), Hard: int64(l.Hard)}
		r.Ulimits = append(r.Ulimits, ulimit)
	}
	return r
}

// mount translates a bind or a volume. A bind fails if its source is missing, where Docker's older
// form would make a directory that is root's.
func (s Spec) mount(m specs.Mount) mount.Mount {
	translated := mount.Mount{
		Type: mount.Type(m.Type), Source: m.Source, Target: m.Destination, ReadOnly: IsReadOnly(m),
	}
	if m.Type == Bind {
		translated.BindOptions = &mount.BindOptions{Propagation: mount.PropagationRPrivate}
	}
	for _, v := range s.Volumes {
		if m.Type == VolumeType && m.Source == v.Name {
			translated.VolumeOptions = &mount.VolumeOptions{
				NoCopy: true,
				Labels: v.Labels,
				DriverConfig: &mount.Driver{Name: "local", Options: map[string]string{
					"type": "tmpfs", "device": "tmpfs", "o": strings.Join(v.Options, ","),
				}},
			}
		}
	}
	return translated
}

func (s Spec) networkingConfig() *network.NetworkingConfig {
	if s.Net == nil {
		return nil
	}
	at := &network.EndpointSettings{
		IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: s.Net.Addr.String()},
	}
	return &network.NetworkingConfig{
		EndpointsConfig: map[string]*network.EndpointSettings{s.Net.Network: at},
	}
}
