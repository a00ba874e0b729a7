package dockerexec

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec/networks"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/creds"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/seccomp"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/engine"
)

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

// given returns those of the capabilities that a container has by CapDrop and CapAdd, as Docker
// reads them. All of names are in its default set.
func (p Platform) given(names []string) (given []string) {
	const all = "ALL"
	for _, name := range names {
		dropped := slices.Contains(p.CapDrop, name) ||
			slices.Contains(p.CapDrop, all) && !slices.Contains(p.CapAdd, all)
		added := slices.Contains(p.CapAdd, name) && !slices.Contains(p.CapAdd, all)
		if added || !dropped {
			given = append(given, name)
		}
	}
	return given
}

// withAgents returns CapDrop and CapAdd for a container that also has what the agent needs.
func (p Platform) withAgents() (drop, add []string) {
	drop = slices.DeleteFunc(slices.Clone(p.CapDrop), func(name string) bool {
		return slices.Contains(creds.Needed, name)
	})
	add = slices.Clone(p.CapAdd)
	for _, name := range creds.Needed {
		if !slices.Contains(add, name) {
			add = append(add, name)
		}
	}
	return drop, add
}

// rootCapabilities are all that root has in a container whose commands may run as root, whatever
// the settings add: Docker's default set without NET_RAW, which allows forging packets, MKNOD,
// which allows making devices, and SYS_CHROOT, which package seccomp makes useless.
var rootCapabilities = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE",
	"SETFCAP", "SETGID", "SETPCAP", "SETUID",
}

// capabilities returns what the engine's default set is changed by.
func (s Spec) capabilities() engine.Capabilities {
	if s.Root {
		return engine.Capabilities{Drop: []string{"ALL"}, Add: rootCapabilities}
	}
	drop, add := s.Platform.withAgents()
	return engine.Capabilities{Drop: drop, Add: add}
}

// mode returns the agent's mode as the first program.
func (s Spec) mode() string {
	if s.Process.ID != "" {
		return "process"
	}
	if s.Persistent != "" {
		return "lasting"
	}
	return "session"
}

// stopSignal returns the signal that ends the first program, and with it the whole container. The
// kernel drops signals for which a first process has no handler, and one that starts commands while
// others run has none (package spawn).
func (s Spec) stopSignal() syscall.Signal {
	if s.Process.ID != "" {
		return syscall.SIGTERM
	}
	return syscall.SIGKILL
}

// exchange returns what the first program and the service share: a spool, or a process's folder; in
// a persistent container those of all its user's processes, if it may have any.
func (s Spec) exchange(spoolFile string) []specs.Mount {
	switch {
	case s.Process.ID != "":
		return []specs.Mount{engine.BindMount(s.Process.Dir, launch.Dir, false)}
	case s.Persistent != "" && s.Process.Dir != "":
		return []specs.Mount{engine.BindMount(s.Process.Dir, launch.All, false)}
	case s.Persistent != "":
		return nil
	}
	return []specs.Mount{engine.BindMount(spoolFile, wire.SpoolPath, false)}
}

// hasSession reports whether the container lives by a session with the service, and has a file for
// large outputs. That of a process or of a detached sandbox runs without the service.
func (s Spec) hasSession() bool { return s.Process.ID == "" && s.Persistent == "" }

// engineSpec is the only place that translates a Spec into the engine's terms.
func (s Spec) engineSpec(spoolFile string, prepared Prepared, net networks.Wiring) engine.Spec {
	p := s.Platform
	adj := oomScoreAdj
	made := engine.Spec{
		Name:     s.ContainerName(),
		Image:    p.ImageID,
		Runtime:  s.Runtime(),
		Hostname: networks.HostName,
		Labels:   s.labels(),
		Process: specs.Process{
			Args: []string{session.AgentPath, s.mode()},
			Env: []string{
				creds.Variable + "=" + s.commands().String(),
				seccomp.Variable + "=" + p.userNamespaces(),
			},
			Cwd: "/",
			// User is root, which the agent gives up: package creds.
			NoNewPrivileges: true,
			OOMScoreAdj:     &adj,
			Rlimits:         p.rlimits(),
		},
		Stdin:        true, // when it ends, a session does
		StopSignal:   s.stopSignal(),
		Capabilities: s.capabilities(),
		Resources:    p.resources(),
		Shm:          p.Limits.Shm,
		ReadonlyRoot: p.ReadOnlyRoot,
		Mounts:       s.mounts(spoolFile, prepared, net),
		Volumes:      []engine.Volume{s.tmpVolume()},

		RuntimeLoopback: s.isOffline(),
	}
	made.Seccomp, made.Process.ApparmorProfile = p.profiles()
	if s.isOffline() {
		made.Runtime = p.Offline
	}
	switch {
	case net.Link != "":
		made.Runtime, made.RuntimeLoopback = p.Linked, true
		made.Process.Env = append(made.Process.Env, linkVariable+"="+net.Link)
		made.Labels[labelAddress] = net.Addr.String()
	case net.Network != "":
		connect(&made, net)
	}
	return made
}

// mounts returns what is mounted, in this order.
func (s Spec) mounts(spoolFile string, prepared Prepared, net networks.Wiring) []specs.Mount {
	p := s.Platform
	mounts := []specs.Mount{
		tmpfs("/var/tmp", p.Limits.VarTmp, "1777", "exec"),
		tmpfs("/run", p.Limits.Run, "755", "noexec"),
	}
	if s.Persistent != "" || s.Process.ID != "" {
		mounts = append(mounts, tmpfs(control.SocketDir, socketDirSize, "700", "noexec",
			fmt.Sprint("uid=", creds.Agent(s.UID)), fmt.Sprint("gid=", s.GID)))
	}
	mounts = append(mounts, engine.BindMount(p.Agent, session.AgentPath, true))
	mounts = append(mounts, s.exchange(spoolFile)...)
	mounts = append(mounts, specs.Mount{
		Type: engine.VolumeType, Source: s.tmpName(), Destination: "/tmp",
	})
	bundle, bundleAt := s.Certificates()
	for _, own := range []struct{ source, target string }{
		{bundle, bundleAt}, {s.Passwd, "/etc/passwd"}, {s.Group, "/etc/group"},
	} {
		if own.source != "" {
			mounts = append(mounts, engine.BindMount(own.source, own.target, true))
		}
	}
	mounts = append(mounts, s.nameFiles(net)...)
	for _, m := range slices.Concat(s.Mounts, prepared.Mounts) {
		mounts = append(mounts, engine.BindMount(m.Source, m.Target, m.ReadOnly))
	}
	for _, mask := range slices.Concat(s.Masks, prepared.Masks) {
		if !mask.Absent {
			mounts = append(mounts, engine.BindMount(p.maskSource(mask), mask.Target, true))
		}
	}
	return mounts
}

// linkVariable tells the runtime how to connect the container (tools/runsc/linker).
const linkVariable = "DAYCARE_LINK"

// connect attaches a container to its network.
func connect(made *engine.Spec, net networks.Wiring) {
	// The engine's own server, which gVisor does not reach and no file names, must not know the
	// host's resolvers either.
	made.Net = &engine.Attachment{
		Network: net.Network, Addr: net.Addr, Resolver: net.Gateway.String(),
	}
	made.Sysctl = map[string]string{
		"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1",
	}
}

// cpuPeriod is the scheduler's period in microseconds; a container gets its share in each.
const cpuPeriod = 100_000

// resources returns what all of a container may use. There is no swap beyond its memory.
func (p Platform) resources() specs.LinuxResources {
	memory, period := p.Limits.Memory, uint64(cpuPeriod)
	quota := p.Limits.NanoCPUs / (1e9 / cpuPeriod)
	return specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period},
		Memory: &specs.LinuxMemory{Limit: &memory, Swap: &memory},
		Pids:   &specs.LinuxPids{Limit: p.hostPids()},
	}
}

// oomScoreAdj makes a host that is out of memory kill tenants' programs, agents included, before
// any program of its own: limits are per container, and files in memory count for no process.
// Package agent uses the room above it for commands.
const oomScoreAdj = 900

// socketDirSize bounds the agent's own folder, in bytes. It holds one socket.
const socketDirSize = 64 << 10

// rlimits returns the limits that containers would otherwise inherit from the engine. The number of
// processes is among them under gVisor, whose kernel counts it for a uid of the container: what a
// command starts too much fails then, and the agent, which has another uid, goes on. The host's
// kernel counts it for a uid over all containers, so otherwise the limit of Pids alone bounds it.
func (p Platform) rlimits() []specs.POSIXRlimit {
	limit := func(kind string, most int64) specs.POSIXRlimit {
		return specs.POSIXRlimit{Type: kind, Soft: uint64(most), Hard: uint64(most)}
	}
	limits := []specs.POSIXRlimit{
		limit("RLIMIT_CORE", 0), limit("RLIMIT_NOFILE", p.Limits.OpenFiles),
	}
	if p.GVisor {
		limits = append(limits, limit("RLIMIT_NPROC", p.Limits.Pids))
	}
	return limits
}

// Of gVisor's own threads on the host: how many there are for each of a container's threads, and
// besides. gVisor ends when it cannot start one.
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

// tmpfs returns a file system in memory, of so many bytes.
func tmpfs(target string, size int64, mode string, options ...string) specs.Mount {
	all := []string{"rw", "nosuid", "nodev", fmt.Sprint("size=", size), "mode=" + mode}
	return specs.Mount{
		Type: engine.Tmpfs, Destination: target, Options: append(all, options...),
	}
}
