package dockerexec

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec/networks"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/creds"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/engine"
)

// What every container promises, whatever its Spec says; package engine adds what no Spec of its
// own can say.
func TestSecurityOfEveryContainer(t *testing.T) {
	relaxed := fullSpec()
	relaxed.Platform.ReadOnlyRoot = false
	for name, s := range map[string]Spec{"empty": {}, "full": fullSpec(), "relaxed": relaxed} {
		made := s.engineSpec("/data/users/alice/.spool-1", Prepared{}, networks.Wiring{})
		noCore := specs.POSIXRlimit{Type: "RLIMIT_CORE"}
		agent := engine.BindMount(s.Platform.Agent, session.AgentPath, true)
		for promise, kept := range map[string]bool{
			"no new privileges":     made.Process.NoNewPrivileges,
			"no network":            made.Net == nil,
			"no core files":         slices.Contains(made.Process.Rlimits, noCore),
			"no sysctl":             len(made.Sysctl) == 0,
			"before the host's own": *made.Process.OOMScoreAdj == 900,
			"agent is read-only":    has(made, agent),
		} {
			if !kept {
				t.Errorf("%s: %s: %+v", name, promise, made)
			}
		}
		for _, m := range made.Mounts {
			for _, want := range []string{"nosuid", "nodev"} {
				if m.Type == engine.Tmpfs && !slices.Contains(m.Options, want) {
					t.Errorf("%s: %s without %s: %s", name, m.Destination, want, m.Options)
				}
			}
		}
	}
}

// What a Spec asks for arrives, each field where it belongs.
func TestEngineSpecOfASpec(t *testing.T) {
	s := fullSpec()
	s.Process = Process{}
	made := s.engineSpec("/data/users/alice/.spool-1", Prepared{}, networks.Wiring{})
	bind := engine.BindMount
	memory, cpu, period := int64(16<<30), int64(400_000), uint64(100_000)
	for what, tt := range map[string]struct{ got, want any }{
		"runtime":        {made.Runtime, "runsc"},
		"read-only root": {made.ReadonlyRoot, true},
		"capabilities": {made.Capabilities, engine.Capabilities{
			Drop: []string{"ALL"},
			Add:  []string{"CHOWN", "FOWNER", "KILL", "SETGID", "SETPCAP", "SETUID"},
		}},
		"unconfined": {
			[]string{made.Seccomp, made.Process.ApparmorProfile},
			[]string{engine.Unconfined, engine.Unconfined},
		},
		"resources, with no swap beyond memory": {made.Resources, specs.LinuxResources{
			CPU:    &specs.LinuxCPU{Quota: &cpu, Period: &period},
			Memory: &specs.LinuxMemory{Limit: &memory, Swap: &memory},
			Pids:   &specs.LinuxPids{Limit: 1024},
		}},
		"descriptors": {
			made.Process.Rlimits[1],
			specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: 4096, Hard: 4096},
		},
		"shm": {made.Shm, int64(1 << 30)},
		"mounts": {made.Mounts, []specs.Mount{
			{Type: engine.Tmpfs, Destination: "/var/tmp", Options: []string{
				"rw", "nosuid", "nodev", "size=3221225472", "mode=1777", "exec",
			}},
			{Type: engine.Tmpfs, Destination: "/run", Options: []string{
				"rw", "nosuid", "nodev", "size=67108864", "mode=755", "noexec",
			}},
			bind(s.Platform.Agent, session.AgentPath, true),
			bind("/data/users/alice/.spool-1", wire.SpoolPath, false),
			{Type: engine.VolumeType, Source: s.tmpName(), Destination: "/tmp"},
			bind("/var/lib/sandboxd/masks/hosts", "/etc/hosts", true),
			bind("/var/lib/sandboxd/masks/resolv.conf", "/etc/resolv.conf", true),
			bind("/data/users/alice/home", "/home", false),
			bind("/data/skills", "/shared/skills", true),
			bind("/var/lib/sandboxd/masks/file", "/home/.netrc", true),
			bind("/var/lib/sandboxd/masks/empty", "/home/.ssh", true),
		}},
		"volumes": {made.Volumes, []engine.Volume{{
			Name: s.tmpName(), Options: []string{"nosuid", "nodev", "size=2147483648", "mode=1777"},
			Labels: map[string]string{
				labelInstance: "i-1", labelData: "/var/lib/sandboxd", labelUser: "alice",
			},
		}}},
		"user":             {made.Process.User, specs.User{}},
		"user of commands": {made.Process.Env[:1], []string{"DAYCARE_COMMANDS_RUN_AS=1000:1001:"}},

		"image by its content": {made.Image, "sha256:aa"},
		"first process":        {made.Process.Args, []string{session.AgentPath, "session"}},
	} {
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", what, diff)
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

// What a container trusts of its own is in the place of what all trust.
func TestCertificatesOfAContainer(t *testing.T) {
	s := fullSpec()
	s.Platform.Bundle, s.Platform.BundleAt = "/image/house", "/etc/ssl/cert.pem"
	house := engine.BindMount("/image/house", "/etc/ssl/cert.pem", true)
	if made := s.engineSpec("/x", Prepared{}, networks.Wiring{}); !has(made, house) {
		t.Errorf("%+v", made.Mounts)
	}
	s.Bundle, s.BundleAt = "/image/own", "/etc/ssl/cert.pem"
	made := s.engineSpec("/x", Prepared{}, networks.Wiring{})
	if !has(made, engine.BindMount("/image/own", "/etc/ssl/cert.pem", true)) || has(made, house) {
		t.Errorf("%+v", made.Mounts)
	}
}

// A network is that of our name, with names resolved by the gateway alone.
func TestWiring(t *testing.T) {
	made := fullSpec().engineSpec("/x", Prepared{}, networks.Wiring{
		Network: "daycare-isolated", Gateway: netip.MustParseAddr("10.1.2.1"),
		ResolvConf: "/var/lib/sandboxd/resolv",
	})
	if made.Net == nil || made.Net.Network != "daycare-isolated" ||
		made.Net.Resolver != "10.1.2.1" || made.Sysctl["net.ipv6.conf.all.disable_ipv6"] != "1" {
		t.Errorf("%+v", made)
	}
	want := engine.BindMount("/var/lib/sandboxd/resolv", "/etc/resolv.conf", true)
	if !has(made, want) {
		t.Errorf("resolv.conf: %+v", made.Mounts)
	}
}

// has reports whether a container gets a mount.
func has(made engine.Spec, want specs.Mount) bool {
	return slices.ContainsFunc(made.Mounts, func(m specs.Mount) bool {
		return reflect.DeepEqual(m, want)
	})
}

// A process's container differs in what its first program does, and in nothing that holds it.
func TestProcessOfASpec(t *testing.T) {
	s := fullSpec()
	process := s.engineSpec("", Prepared{}, networks.Wiring{})
	if got := process.Process.Args; !slices.Equal(got, []string{session.AgentPath, "process"}) {
		t.Errorf("%q", got)
	}
	if !has(process, engine.BindMount(s.Process.Dir, "/.daycare/process", false)) {
		t.Errorf("%+v", process.Mounts)
	}
	s.Process = Process{}
	other := s.engineSpec("/spool", Prepared{}, networks.Wiring{})
	process.Mounts = slices.DeleteFunc(process.Mounts, func(m specs.Mount) bool {
		return m.Destination == control.SocketDir || m.Destination == launch.Dir // the agent's alone
	})
	other.Mounts = slices.Delete(other.Mounts, 3, 4)
	process.Process.Args, other.Process.Args = nil, nil
	process.Name, process.Labels, process.StopSignal = other.Name, other.Labels, other.StopSignal
	process.Stdin = true // by which a session ends
	if diff := cmp.Diff(other, process); diff != "" {
		t.Errorf("beyond that:\n%s", diff)
	}
}

func TestConfinedByDefault(t *testing.T) {
	s := fullSpec()
	s.Platform.Unconfined, s.Platform.UserNamespaces = false, false
	made := s.engineSpec("/x", Prepared{}, networks.Wiring{})
	if made.Seccomp != "" || made.Process.ApparmorProfile != "" || !made.Process.NoNewPrivileges {
		t.Errorf("%+v", made)
	}
}

// With user namespaces Docker's profile stays, and lets the calls through that these need.
func TestUserNamespacesAreLetThrough(t *testing.T) {
	s := fullSpec()
	s.Platform.Unconfined = false
	made := s.engineSpec("/x", Prepared{}, networks.Wiring{})
	if made.Seccomp == "" || !made.Process.NoNewPrivileges {
		t.Fatalf("%+v", made)
	}
	var read struct {
		DefaultAction string
		Syscalls      []struct {
			Names  []string
			Action string
			Args   []any
		}
	}
	if err := json.Unmarshal([]byte(made.Seccomp), &read); err != nil {
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
	if got := made.Process.Env[1:]; !slices.Equal(got, []string{"DAYCARE_USER_NAMESPACES=allowed"}) {
		t.Errorf("the agent is told %q", got)
	}
}

// Root has what it is to have, whatever the settings add for commands.
func TestRootsCapabilities(t *testing.T) {
	s := fullSpec()
	s.Root, s.Platform.CapAdd = true, []string{"NET_ADMIN", "NET_RAW"}
	made := s.engineSpec("", Prepared{}, networks.Wiring{})
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

// Who has no network has a container that Docker gives none, where the runtime can do without; no other container has.
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
		"process":     {with(func(s *Spec) { s.Process.ID = "p-1" }), "runsc-offline"},
		"persistent":  {with(func(s *Spec) { s.Persistent = "l-1" }), "runsc-offline"},
		"under runc":  {with(func(s *Spec) { s.Platform.Runtime, s.Platform.Offline = "runc", "runc" }), "runc"},
		"of the pool": {with(func(s *Spec) { s.User = "" }), "runsc-offline"},
	} {
		made := tt.spec.engineSpec("/x", Prepared{}, networks.Wiring{})
		disabled := !slices.Contains([]string{"not known", "events", "network"}, name)
		file := map[bool]string{true: "/masks/hosts-offline", false: "/masks/hosts"}[disabled]
		hosts := has(made, engine.BindMount(file, "/etc/hosts", true))
		if made.Runtime != tt.runtime || !hosts || made.RuntimeLoopback != disabled || made.Net != nil {
			t.Errorf("%s: %s, hosts %v, %+v", name, made.Runtime, hosts, made)
		}
	}
}

// A container that reaches names is connected by its runtime where that can, and the engine gives it no network.
func TestLinkedContainers(t *testing.T) {
	linked := Spec{Platform: Platform{Runtime: "runsc", EventsRuntime: "runsc-events", Linked: "runsc-linked"}, Egress: Egress{Profile: "isolated", Domains: []string{"a.example"}}}
	for name, tt := range map[string]struct {
		change func(*Spec)
		is     bool
	}{
		"names":     {func(*Spec) {}, true},
		"process":   {func(s *Spec) { s.Process.ID = "p-1" }, true},
		"machine":   {func(s *Spec) { s.Persistent = "l-1" }, true},
		"no names":  {func(s *Spec) { s.Egress.Domains = nil }, true},
		"open":      {func(s *Spec) { s.Egress.Domains = []string{"*"} }, false},
		"offline":   {func(s *Spec) { s.Egress = Egress{} }, false},
		"events":    {func(s *Spec) { s.Events = true }, false},
		"not known": {func(s *Spec) { s.Platform.Linked = "" }, false},
	} {
		s := linked
		if tt.change(&s); s.isLinked() != tt.is {
			t.Errorf("%s: linked is %v", name, !tt.is)
		}
	}
	at := networks.Wiring{Network: "daycare-isolated", Addr: netip.MustParseAddr("10.1.5.3"), ResolvConf: "/resolv"}
	before := linked.engineSpec("/x", Prepared{}, at)
	if before.Runtime != "runsc" || before.RuntimeLoopback || before.Net == nil || before.Labels[labelAddress] != "" {
		t.Errorf("without a link: %+v", before)
	}
	at.Link = "how"
	made := linked.engineSpec("/x", Prepared{}, at)
	if made.Runtime != "runsc-linked" || !made.RuntimeLoopback || made.Net != nil || made.Labels[labelAddress] != "10.1.5.3" ||
		!slices.Contains(made.Process.Env, "DAYCARE_LINK=how") || !has(made, engine.BindMount("/resolv", "/etc/resolv.conf", true)) {
		t.Errorf("%+v", made)
	}
}
