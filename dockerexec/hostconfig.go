package dockerexec

import (
	"fmt"
	"strconv"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/daycare-run/sandbox/agent/wire"
)

// AgentPath is where every container finds the agent, whatever its image.
const AgentPath = "/.daycare/agent"

// containerConfig and hostConfig are the one place where a Spec is put in Docker's terms.
func (s Spec) containerConfig() *container.Config {
	return &container.Config{
		Image:       s.Platform.ImageID,
		Hostname:    "sandbox",
		User:        strconv.FormatUint(uint64(s.UID), 10) + ":" + strconv.FormatUint(uint64(s.GID), 10),
		WorkingDir:  "/",
		Entrypoint:  []string{AgentPath, "init"},
		Cmd:         []string{},
		StopSignal:  "SIGTERM",
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		Labels:      s.labels(),
	}
}

func (s Spec) hostConfig(spoolFile string) *container.HostConfig {
	p := s.Platform
	pids := p.Limits.Pids
	host := &container.HostConfig{
		Runtime:        p.Runtime,
		NetworkMode:    "none",
		ReadonlyRootfs: p.ReadOnlyRoot,
		CapDrop:        p.CapDrop,
		CapAdd:         p.CapAdd,
		SecurityOpt:    []string{"no-new-privileges"},
		IpcMode:        container.IPCModePrivate,
		ShmSize:        p.Limits.Shm,
		LogConfig:      container.LogConfig{Type: "none"},
		RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
		Resources: container.Resources{
			NanoCPUs:   p.Limits.NanoCPUs,
			Memory:     p.Limits.Memory,
			MemorySwap: p.Limits.Memory, // together with Memory: no swap beyond it
			PidsLimit:  &pids,
		},
		Tmpfs: map[string]string{
			"/tmp":     tmpfs(p.Limits.Tmp, "1777,exec"),
			"/var/tmp": tmpfs(p.Limits.VarTmp, "1777,exec"),
			"/run":     tmpfs(p.Limits.Run, "755,noexec"),
		},
		Mounts: []mount.Mount{
			bind(Mount{Source: p.Agent, Target: AgentPath, ReadOnly: true}),
			bind(Mount{Source: spoolFile, Target: wire.SpoolPath}),
		},
	}
	if p.Unconfined {
		host.SecurityOpt = append(host.SecurityOpt, "seccomp=unconfined", "apparmor=unconfined")
	}
	for _, m := range s.Mounts {
		host.Mounts = append(host.Mounts, bind(m))
	}
	return host
}

func tmpfs(size int64, mode string) string {
	return fmt.Sprintf("rw,nosuid,nodev,size=%d,mode=%s", size, mode)
}

// bind is a mount that fails where the source is missing, instead of making a directory of root's.
func bind(m Mount) mount.Mount {
	return mount.Mount{
		Type:        mount.TypeBind,
		Source:      m.Source,
		Target:      m.Target,
		ReadOnly:    m.ReadOnly,
		BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate},
	}
}
