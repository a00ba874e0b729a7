package dockerexec

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	containertypes "github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/creds"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// What every container promises, whatever its Spec says.
func TestSecurityOfEveryContainer(t *testing.T) {
	relaxed := fullSpec()
	relaxed.Platform.ReadOnlyRoot = false
	for name, s := range map[string]Spec{"empty": {}, "full": fullSpec(), "relaxed": relaxed} {
		host := hostConfig(t, s, "/data/users/alice/.spool-1")
		for promise, kept := range map[string]bool{
			"never privileged":      !host.Privileged,
			"no new privileges":     slices.Contains(host.SecurityOpt, "no-new-privileges"),
			"no network":            host.NetworkMode == "none",
			"no published port":     len(host.PortBindings) == 0 && !host.PublishAllPorts,
			"an IPC of its own":     host.IpcMode == containertypes.IPCModePrivate,
			"no PID of the host":    host.PidMode == "",
			"no user of the host":   host.UsernsMode == "",
			"no UTS of the host":    host.UTSMode == "",
			"no cgroup of the host": host.CgroupnsMode == containertypes.CgroupnsModePrivate,
			"no core files":         slices.ContainsFunc(host.Ulimits, func(u *containertypes.Ulimit) bool { return u.Name == "core" && u.Soft == 0 && u.Hard == 0 }),
			"no device":             len(host.Devices)+len(host.DeviceRequests)+len(host.DeviceCgroupRules) == 0,
			"no volume":             len(host.Binds)+len(host.VolumesFrom) == 0,
			"no restart":            host.RestartPolicy.Name == containertypes.RestartPolicyDisabled,
			"no log on the disk":    host.LogConfig.Type == "none",
			"no annotation":         len(host.Annotations) == 0,
			"no sysctl":             len(host.Sysctls) == 0,
			"no extra group":        len(host.GroupAdd) == 0,
			"before the host's own": host.OomScoreAdj == 900,
			"agent is read-only":    host.Mounts[0].Target == session.AgentPath && host.Mounts[0].ReadOnly,
		} {
			if !kept {
				t.Errorf("%s: %s: %+v", name, promise, host)
			}
		}
		for target, options := range host.Tmpfs {
			for _, want := range []string{"nosuid", "nodev"} {
				if !slices.Contains(strings.Split(options, ","), want) {
					t.Errorf("%s: %s without %s: %s", name, target, want, options)
				}
			}
		}
	}
}

// What a Spec asks for arrives, each field where it belongs.
func TestHostConfigOfASpec(t *testing.T) {
	bindOptions := &mount.BindOptions{Propagation: mount.PropagationRPrivate}
	for _, tt := range []struct {
		name string
		got  func(Spec, *containertypes.HostConfig) any
		want any
	}{
		{"runtime", func(_ Spec, h *containertypes.HostConfig) any { return h.Runtime }, "runsc"},
		{"read-only root", func(_ Spec, h *containertypes.HostConfig) any { return h.ReadonlyRootfs }, true},
		{"capabilities dropped", func(_ Spec, h *containertypes.HostConfig) any { return []string(h.CapDrop) }, []string{"ALL"}},
		{"capabilities added", func(_ Spec, h *containertypes.HostConfig) any { return []string(h.CapAdd) },
			[]string{"CAP_CHOWN", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID"}},
		{"unconfined", func(_ Spec, h *containertypes.HostConfig) any { return h.SecurityOpt },
			[]string{"no-new-privileges", "seccomp=unconfined", "apparmor=unconfined"}},
		{"CPUs", func(_ Spec, h *containertypes.HostConfig) any { return h.NanoCPUs }, int64(4e9)},
		{"memory", func(_ Spec, h *containertypes.HostConfig) any { return h.Memory }, int64(16 << 30)},
		{"no swap beyond memory", func(_ Spec, h *containertypes.HostConfig) any { return h.MemorySwap }, int64(16 << 30)},
		{"pids", func(_ Spec, h *containertypes.HostConfig) any { return *h.PidsLimit }, int64(1024)},
		{"descriptors", func(_ Spec, h *containertypes.HostConfig) any { return h.Ulimits[1].Hard }, int64(4096)},
		{"shm", func(_ Spec, h *containertypes.HostConfig) any { return h.ShmSize }, int64(1 << 30)},
		{"tmpfs", func(_ Spec, h *containertypes.HostConfig) any { return h.Tmpfs }, map[string]string{
			"/var/tmp": "rw,nosuid,nodev,size=3221225472,mode=1777,exec",
			"/run":     "rw,nosuid,nodev,size=67108864,mode=755,noexec",
		}},
		{"mounts", func(_ Spec, h *containertypes.HostConfig) any { return h.Mounts }, []mount.Mount{
			{Type: mount.TypeBind, Source: fullSpec().Platform.Agent, Target: session.AgentPath, ReadOnly: true, BindOptions: bindOptions},
			{Type: mount.TypeBind, Source: "/data/users/alice/.spool-1", Target: wire.SpoolPath, BindOptions: bindOptions},
			{Type: mount.TypeVolume, Source: fullSpec().tmpName(), Target: "/tmp", VolumeOptions: &mount.VolumeOptions{
				NoCopy: true,
				Labels: map[string]string{labelInstance: "i-1", labelData: "/var/lib/sandboxd", labelUser: "alice"},
				DriverConfig: &mount.Driver{Name: "local", Options: map[string]string{
					"type": "tmpfs", "device": "tmpfs", "o": "nosuid,nodev,size=2147483648,mode=1777",
				}},
			}},
			{Type: mount.TypeBind, Source: "/var/lib/sandboxd/masks/hosts", Target: "/etc/hosts", ReadOnly: true, BindOptions: bindOptions},
			{Type: mount.TypeBind, Source: "/var/lib/sandboxd/masks/resolv.conf", Target: "/etc/resolv.conf", ReadOnly: true, BindOptions: bindOptions},
			{Type: mount.TypeBind, Source: "/data/users/alice/home", Target: "/home", BindOptions: bindOptions},
			{Type: mount.TypeBind, Source: "/data/skills", Target: "/shared/skills", ReadOnly: true, BindOptions: bindOptions},
			{Type: mount.TypeBind, Source: "/var/lib/sandboxd/masks/file", Target: "/home/.netrc", ReadOnly: true, BindOptions: bindOptions},
			{Type: mount.TypeBind, Source: "/var/lib/sandboxd/masks/closed", Target: "/home/.ssh", ReadOnly: true, BindOptions: bindOptions},
		}},
		{"user", func(s Spec, _ *containertypes.HostConfig) any { return askedFor(t, s, "", Prepared{}, wiring{}).User }, "0:0"},
		{"user of commands", func(s Spec, _ *containertypes.HostConfig) any {
			return askedFor(t, s, "", Prepared{}, wiring{}).Env[:1]
		}, []string{"DAYCARE_COMMANDS_RUN_AS=1000:1001:"}},
		{"image by its content", func(s Spec, _ *containertypes.HostConfig) any { return askedFor(t, s, "", Prepared{}, wiring{}).Image }, "sha256:aa"},
		{"first process", func(s Spec, _ *containertypes.HostConfig) any {
			return append(slices.Clone(askedFor(t, s, "", Prepared{}, wiring{}).Entrypoint), askedFor(t, s, "", Prepared{}, wiring{}).Cmd...)
		}, []string{session.AgentPath, "session"}},
	} {
		s := fullSpec()
		s.Process = Process{}
		got := tt.got(s, hostConfig(t, s, "/data/users/alice/.spool-1"))
		if v := reflect.ValueOf(got); v.Kind() == reflect.Slice && v.Type() != reflect.TypeOf(tt.want) {
			got = v.Convert(reflect.TypeOf(tt.want)).Interface()
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", tt.name, diff)
		}
	}
}

// The capabilities that the agent needs and the operator's settings give stay in the commands' bounding set, as Docker
// would have it.
func TestCapabilitiesOfTheAgent(t *testing.T) {
	for _, tt := range []struct{ drop, add, given, wantDrop, wantAdd string }{
		{"ALL", "", "", "ALL", "KILL SETGID SETPCAP SETUID"},
		{"ALL", "NET_RAW SETUID", "SETUID", "ALL", "NET_RAW SETUID KILL SETGID SETPCAP"},
		{"", "", "KILL SETGID SETPCAP SETUID", "", "KILL SETGID SETPCAP SETUID"},
		{"KILL CHOWN", "", "SETGID SETPCAP SETUID", "CHOWN", "KILL SETGID SETPCAP SETUID"},
		{"KILL", "KILL", "KILL SETGID SETPCAP SETUID", "", "KILL SETGID SETPCAP SETUID"},
		{"KILL ALL", "ALL", "SETGID SETPCAP SETUID", "ALL", "ALL KILL SETGID SETPCAP SETUID"},
	} {
		p := Platform{CapDrop: strings.Fields(tt.drop), CapAdd: strings.Fields(tt.add)}
		drop, add := p.withAgents()
		got := []string{strings.Join(p.given(creds.Needed), " "), strings.Join(drop, " "), strings.Join(add, " ")}
		if want := []string{tt.given, tt.wantDrop, tt.wantAdd}; !slices.Equal(got, want) {
			t.Errorf("-%s +%s: %q, want %q", tt.drop, tt.add, got, want)
		}
	}
}

// A network is that of our name, with names resolved by the gateway alone.
func TestWiring(t *testing.T) {
	asked := askedFor(t, fullSpec(), "/x", Prepared{}, wiring{network: "daycare-isolated", gateway: "10.1.2.1", resolvConf: "/var/lib/sandboxd/resolv"})
	host := &asked.HostConfig
	if host.NetworkMode != "daycare-isolated" || !slices.Equal(host.DNS, []string{"10.1.2.1"}) || host.Sysctls["net.ipv6.conf.all.disable_ipv6"] != "1" {
		t.Errorf("%+v", host)
	}
	if i := slices.IndexFunc(host.Mounts, func(m mount.Mount) bool { return m.Target == "/etc/resolv.conf" }); i < 0 || !host.Mounts[i].ReadOnly || host.Mounts[i].Source != "/var/lib/sandboxd/resolv" {
		t.Errorf("resolv.conf: %+v", host.Mounts)
	}
}

// A process's container differs in what its first program does, and in nothing that holds it.
func TestProcessOfASpec(t *testing.T) {
	s := fullSpec()
	process := hostConfig(t, s, "")
	if got := askedFor(t, s, "", Prepared{}, wiring{}).Entrypoint; !slices.Equal(got, []string{session.AgentPath, "process"}) {
		t.Errorf("%q", got)
	}
	if m := process.Mounts[1]; m.Source != s.Process.Dir || m.Target != "/.daycare/process" || m.ReadOnly {
		t.Errorf("%+v", m)
	}
	s.Process = Process{}
	other := hostConfig(t, s, "/spool")
	process.Mounts, other.Mounts = slices.Delete(process.Mounts, 1, 2), slices.Delete(other.Mounts, 1, 2)
	if diff := cmp.Diff(other, process); diff != "" {
		t.Errorf("beyond that:\n%s", diff)
	}
}

func TestConfinedByDefault(t *testing.T) {
	s := fullSpec()
	s.Platform.Unconfined, s.Platform.UserNamespaces = false, false
	if got := hostConfig(t, s, "/x").SecurityOpt; !slices.Equal(got, []string{"no-new-privileges"}) {
		t.Errorf("%v", got)
	}
}

// With user namespaces Docker's profile stays, and lets the calls through that these need.
func TestUserNamespacesAreLetThrough(t *testing.T) {
	s := fullSpec()
	s.Platform.Unconfined = false
	options := hostConfig(t, s, "/x").SecurityOpt
	profile, found := strings.CutPrefix(options[1], "seccomp=")
	if !found || !slices.Contains(options, "no-new-privileges") {
		t.Fatalf("%.200q", options)
	}
	var read struct {
		DefaultAction string
		Syscalls      []struct {
			Names  []string
			Action string
			Args   []any
		}
	}
	if err := json.Unmarshal([]byte(profile), &read); err != nil {
		t.Fatal(err)
	}
	rules := map[string][]string{}
	for _, rule := range read.Syscalls {
		for _, name := range rule.Names {
			rules[name] = append(rules[name], fmt.Sprint(rule.Action, len(rule.Args)))
		}
	}
	if read.DefaultAction != "SCMP_ACT_ERRNO" || !slices.Equal(rules["clone"], []string{"SCMP_ACT_ALLOW0"}) || !slices.Equal(rules["setns"], rules["clone"]) ||
		len(rules["read"]) != 1 || len(rules["kexec_load"]) != 0 {
		t.Errorf("%s: clone %v, setns %v, read %v, kexec_load %v", read.DefaultAction, rules["clone"], rules["setns"], rules["read"], rules["kexec_load"])
	}
	if got := askedFor(t, s, "", Prepared{}, wiring{}).Env[1:]; !slices.Equal(got, []string{"DAYCARE_USER_NAMESPACES=allowed"}) {
		t.Errorf("the agent is told %q", got)
	}
}

// Root has what it is to have, whatever the settings add for commands.
func TestRootsCapabilities(t *testing.T) {
	s := fullSpec()
	s.Root, s.Platform.CapAdd = true, []string{"NET_ADMIN", "NET_RAW"}
	made := s.engineSpec("", Prepared{}, wiring{})
	host := made.Capabilities
	if !slices.Equal(host.Drop, []string{"ALL"}) || !slices.Equal(host.Add, rootCapabilities) || !made.Process.NoNewPrivileges {
		t.Errorf("%q, %q, %v", host.Drop, host.Add, made.Process.NoNewPrivileges)
	}
	for _, needed := range creds.Needed {
		if !slices.Contains(host.Add, needed) {
			t.Errorf("the agent has not %s", needed)
		}
	}
}

// A call without a network has a container that Docker gives none, where the runtime can do without; no other container has.
func TestOfflineContainers(t *testing.T) {
	offline := Spec{Platform: Platform{Runtime: "runsc", EventsRuntime: "runsc-events", Offline: "runsc-offline", MaskDir: "/masks"}}
	with := func(change func(*Spec)) Spec {
		s := offline
		change(&s)
		return s
	}
	for name, tt := range map[string]struct {
		spec    Spec
		runtime string
	}{
		"offline":     {offline, "runsc-offline"},
		"not known":   {with(func(s *Spec) { s.Platform.Offline = "" }), "runsc"},
		"events":      {with(func(s *Spec) { s.Events = true }), "runsc-events"},
		"network":     {with(func(s *Spec) { s.Egress.Profile = "isolated" }), "runsc"},
		"process":     {with(func(s *Spec) { s.Process.ID = "p-1" }), "runsc"},
		"that lasts":  {with(func(s *Spec) { s.Persistent = "l-1" }), "runsc"},
		"under runc":  {with(func(s *Spec) { s.Platform.Runtime, s.Platform.Offline = "runc", "runc" }), "runc"},
		"of the pool": {with(func(s *Spec) { s.User = "" }), "runsc-offline"},
	} {
		host := hostConfig(t, tt.spec, "/x")
		disabled := name == "offline" || name == "under runc" || name == "of the pool"
		file := map[bool]string{true: "/masks/hosts-offline", false: "/masks/hosts"}[disabled]
		hosts := slices.ContainsFunc(host.Mounts, func(m mount.Mount) bool {
			return m.Target == "/etc/hosts" && m.Source == file && m.ReadOnly
		})
		if host.Runtime != tt.runtime || !hosts || askedFor(t, tt.spec, "", Prepared{}, wiring{}).NetworkDisabled != disabled || host.NetworkMode != "none" {
			t.Errorf("%s: %s, hosts %v, %+v", name, host.Runtime, hosts, askedFor(t, tt.spec, "", Prepared{}, wiring{}))
		}
	}
}
