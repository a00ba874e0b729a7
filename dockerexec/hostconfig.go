package dockerexec

import (
	"fmt"
	"slices"
	"strconv"

	containertypes "github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/daycare-run/sandbox/internal/agent/ask"
	"github.com/daycare-run/sandbox/internal/agent/creds"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/seccomp"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// agentPath is where every container finds the agent, whatever its image.
const agentPath = "/.daycare/agent"

// containerConfig and hostConfig are the only place that translates a Spec into Docker's terms.
func (s Spec) containerConfig() *containertypes.Config {
	return &containertypes.Config{
		Image:    s.Platform.ImageID,
		Hostname: HostName,
		User:     "0:0", // which the agent gives up: package creds
		Env: []string{
			creds.Variable + "=" + s.commands().String(),
			seccomp.Variable + "=" + s.Platform.userNamespaces(),
		},
		WorkingDir: "/",
		// Docker closes stdin when the attached client has gone: then the session ends.
		OpenStdin: !s.isAlone(), StdinOnce: true,
		Entrypoint:  []string{agentPath, s.mode()},
		Cmd:         []string{},
		StopSignal:  s.stopSignal(),
		Healthcheck: &containertypes.HealthConfig{Test: []string{"NONE"}},
		Labels:      s.labels(),

		NetworkDisabled: s.isOffline(),
	}
}

// userNamespaces tells the agent whether commands may create user namespaces.
func (p Platform) userNamespaces() string {
	if p.UserNamespaces {
		return seccomp.Allowed
	}
	return seccomp.Refused
}

// commands returns the user that commands run as.
func (s Spec) commands() creds.IDs {
	return creds.IDs{UID: s.UID, GID: s.GID, Bounding: s.Platform.given(creds.Needed), Root: s.Root}
}

// user returns that user in Docker's form.
func (s Spec) user() string {
	return strconv.FormatUint(uint64(s.UID), 10) + ":" + strconv.FormatUint(uint64(s.GID), 10)
}

// given returns those of the capabilities that a container has by CapDrop and CapAdd, as Docker reads them. All of
// names are in its default set.
func (p Platform) given(names []string) (given []string) {
	const all = "ALL"
	for _, name := range names {
		dropped := slices.Contains(p.CapDrop, name) || slices.Contains(p.CapDrop, all) && !slices.Contains(p.CapAdd, all)
		added := slices.Contains(p.CapAdd, name) && !slices.Contains(p.CapAdd, all)
		if added || !dropped {
			given = append(given, name)
		}
	}
	return given
}

// withAgents returns CapDrop and CapAdd for a container that also has what the agent needs.
func (p Platform) withAgents() (drop, add []string) {
	drop = slices.DeleteFunc(slices.Clone(p.CapDrop), func(name string) bool { return slices.Contains(creds.Needed, name) })
	add = slices.Clone(p.CapAdd)
	for _, name := range creds.Needed {
		if !slices.Contains(add, name) {
			add = append(add, name)
		}
	}
	return drop, add
}

// rootCapabilities are all that root has in a container whose commands may run as root, whatever the settings add:
// Docker's default set without NET_RAW, which allows forging packets, MKNOD, which allows making devices, and
// SYS_CHROOT, which package seccomp makes useless.
var rootCapabilities = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID",
}

// capabilities returns CapDrop and CapAdd for Docker.
func (s Spec) capabilities() (drop, add []string) {
	if s.Root {
		return []string{"ALL"}, rootCapabilities
	}
	return s.Platform.withAgents()
}

// mode returns the agent's mode as the first program.
func (s Spec) mode() string {
	if s.Process.ID != "" {
		return "process"
	}
	if s.Lasting != "" {
		return "lasting"
	}
	return "session"
}

// stopSignal is the signal that ends the first program, and with it the whole container. The kernel drops signals for
// which a first process has no handler, and one that starts commands while others run has none (package spawn).
func (s Spec) stopSignal() string {
	if s.Process.ID != "" {
		return "SIGTERM"
	}
	return "SIGKILL"
}

// exchange returns what the first program and the service share: a spool, or a process's folder; nothing for a lasting container.
func (s Spec) exchange(spoolFile string) []mount.Mount {
	switch {
	case s.Process.ID != "":
		return []mount.Mount{bind(Mount{Source: s.Process.Dir, Target: launch.Dir})}
	case s.Lasting != "":
		return nil
	}
	return []mount.Mount{bind(Mount{Source: spoolFile, Target: wire.SpoolPath})}
}

// isAlone reports whether the Spec's container runs without the service: it is a process's, or lasting. Others have a
// session with the service, and a file for large outputs.
func (s Spec) isAlone() bool { return s.Process.ID != "" || s.Lasting != "" }

// wiring says how a container is connected; it is empty for one without a network.
type wiring struct{ network, gateway, resolvConf string }

func (s Spec) hostConfig(spoolFile string, prepared Prepared, net wiring) *containertypes.HostConfig {
	p := s.Platform
	pids := p.hostPids()
	drop, add := s.capabilities()
	host := &containertypes.HostConfig{
		Runtime:        s.Runtime(),
		NetworkMode:    "none",
		ReadonlyRootfs: p.ReadOnlyRoot,
		CapDrop:        drop,
		CapAdd:         add,
		SecurityOpt:    p.securityOpt(),
		IpcMode:        containertypes.IPCModePrivate,
		CgroupnsMode:   containertypes.CgroupnsModePrivate, // a Docker before 20.10 (API 1.41) does not know it
		ShmSize:        p.Limits.Shm,
		LogConfig:      containertypes.LogConfig{Type: "none"},
		RestartPolicy:  containertypes.RestartPolicy{Name: containertypes.RestartPolicyDisabled},
		OomScoreAdj:    oomScoreAdj,
		Resources: containertypes.Resources{
			NanoCPUs:   p.Limits.NanoCPUs,
			Memory:     p.Limits.Memory,
			MemorySwap: p.Limits.Memory, // together with Memory: no swap beyond it
			PidsLimit:  &pids,
			Ulimits:    p.ulimits(),
		},
		Tmpfs: map[string]string{
			"/var/tmp": tmpfs(p.Limits.VarTmp, "1777,exec"),
			"/run":     tmpfs(p.Limits.Run, "755,noexec"),
		},
		Mounts: slices.Concat([]mount.Mount{bind(Mount{Source: p.Agent, Target: agentPath, ReadOnly: true})}, s.exchange(spoolFile), []mount.Mount{s.tmpVolume()}),
	}
	if s.Lasting != "" {
		host.Tmpfs[ask.SocketDir] = fmt.Sprintf("%s,uid=%d,gid=%d", tmpfs(socketDirSize, "700,noexec"), creds.Agent(s.UID), s.GID)
	}
	for _, own := range []Mount{{Source: p.Bundle, Target: p.BundleAt}, {Source: s.Passwd, Target: "/etc/passwd"}, {Source: s.Group, Target: "/etc/group"}} {
		if own.Source != "" {
			own.ReadOnly = true
			host.Mounts = append(host.Mounts, bind(own))
		}
	}
	if s.isOffline() {
		host.Runtime = p.Offline
	}
	host.Mounts = append(host.Mounts, s.nameFiles(net)...)
	if net.network != "" {
		net.connect(host)
	}
	for _, m := range slices.Concat(s.Mounts, prepared.Mounts) {
		host.Mounts = append(host.Mounts, bind(m))
	}
	for _, mask := range slices.Concat(s.Masks, prepared.Masks) {
		if !mask.Absent {
			host.Mounts = append(host.Mounts, bind(Mount{Source: p.maskSource(mask), Target: mask.Target, ReadOnly: true}))
		}
	}
	return host
}

// connect attaches a container to its network.
func (net wiring) connect(host *containertypes.HostConfig) {
	host.NetworkMode = containertypes.NetworkMode(net.network)
	// Docker's own server, which gVisor does not reach and no file names, must not know the host's resolvers either.
	host.DNS = []string{net.gateway}
	host.Sysctls = map[string]string{"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"}
}

// oomScoreAdj makes a host that is out of memory kill tenants' programs, agents included, before any program of its own:
// limits are per container, and files in memory count for no process. Package agent uses the room above it for commands.
const oomScoreAdj = 900

// socketDirSize bounds the agent's own folder, in bytes. It holds one socket.
const socketDirSize = 64 << 10

// ulimits returns the limits that containers would otherwise inherit from Docker. The number of processes is among them under
// gVisor, whose kernel counts it for a uid of the container: what a command starts too much fails then, and the agent, which has
// another uid, goes on. The host's kernel counts it for a uid over all containers, so otherwise PidsLimit alone bounds it.
func (p Platform) ulimits() []*containertypes.Ulimit {
	l := p.Limits
	limits := []*containertypes.Ulimit{
		{Name: "core", Soft: 0, Hard: 0},
		{Name: "nofile", Soft: l.OpenFiles, Hard: l.OpenFiles},
	}
	if p.GVisor {
		limits = append(limits, &containertypes.Ulimit{Name: "nproc", Soft: l.Pids, Hard: l.Pids})
	}
	return limits
}

// Of gVisor's own threads on the host: how many there are for each of a container's threads, and besides. gVisor ends
// when it cannot start one.
const (
	sentryThreads = 2
	sentrySpare   = 256
	// mostPids is the largest limit that a control group takes (the kernel's PID_MAX_LIMIT).
	mostPids = 1 << 22
)

// hostPids returns how many threads a container may have on the host.
func (p Platform) hostPids() int64 {
	if p.GVisor {
		return min(sentryThreads*p.Limits.Pids+sentrySpare, mostPids)
	}
	return p.Limits.Pids
}

func tmpfs(size int64, mode string) string {
	return fmt.Sprintf("rw,nosuid,nodev,size=%d,mode=%s", size, mode)
}

// bind returns a mount that fails if the source is missing, instead of making a directory owned by root.
func bind(m Mount) mount.Mount {
	return mount.Mount{
		Type:        mount.TypeBind,
		Source:      m.Source,
		Target:      m.Target,
		ReadOnly:    m.ReadOnly,
		BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate},
	}
}
