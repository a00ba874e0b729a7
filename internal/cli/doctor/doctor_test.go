package doctor

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/engine"
)

var errDown = errors.New("it is down")

// cloud is what a cloud's metadata answers.
func cloud(addrs []string, err error) func(context.Context) ([]string, error) {
	return func(context.Context) ([]string, error) { return addrs, err }
}

func answers(e engine.Info) AskDocker {
	return func(context.Context) (engine.Info, error) { return e, nil }
}

func silent(context.Context) (engine.Info, error) { return engine.Info{}, errDown }

var known = engine.Info{Version: "20.10.24+dfsg1", API: "1.41", Runtimes: []string{"runc", "runsc", "shim"}, Programs: map[string]string{"runc": "runc", "runsc": "/bin/runsc", "shim": ""}, GVisor: []string{"runsc"}, Offline: map[string]string{"runc": "runc"}}

func prints(text string, err error) func(context.Context, string) (string, error) {
	return func(context.Context, string) (string, error) { return text, err }
}

func finds(n int, err error) func(context.Context) ([]string, error) {
	var left []string
	for i := range n {
		left = append(left, fmt.Sprintf("thing %d", i))
	}
	return func(context.Context) ([]string, error) { return left, err }
}

func fails(err error) func() error { return func() error { return err } }

func at(places map[string]any) func(string) (Place, error) {
	return func(path string) (Place, error) {
		switch p := places[path].(type) {
		case Place:
			return p, nil
		case error:
			return Place{}, p
		}
		return Place{}, fs.ErrNotExist
	}
}

func disk(s Space, err error) func(string) (Space, error) {
	return func(string) (Space, error) { return s, err }
}

func healthy(change func(*types.Health)) askHealth {
	return func(context.Context) (types.Health, error) {
		h := types.Health{Status: "ok", Version: "v1", Runtime: "runsc"}
		change(&h)
		return h, nil
	}
}

var (
	noon   = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	folder = Place{Mode: fs.ModeDir | 0o711}
	own    = Place{Mode: fs.ModeSocket | 0o600}
	others = Place{Mode: fs.ModeSocket | 0o666}
)

func clocks(built time.Time, synced bool, err error) Clocks {
	return Clocks{Now: noon, Built: built, Synced: func() (bool, error) { return synced, err }}
}

const day = 24 * time.Hour

// lasting is a certificate that is valid from and to so long after noon.
func lasting(from, to time.Duration) *x509.Certificate {
	return &x509.Certificate{Raw: []byte(to.String()), NotBefore: noon.Add(from), NotAfter: noon.Add(to)}
}

func loads(c *x509.Certificate, err error) func() (*x509.Certificate, error) {
	return func() (*x509.Certificate, error) { return c, err }
}

func shows(c *x509.Certificate, err error) func(context.Context) (*x509.Certificate, error) {
	return func(context.Context) (*x509.Certificate, error) { return c, err }
}

// certificate is a good one, but for what change changes.
func certificate(change func(*Certificate)) Certificate {
	good := lasting(-60*day, 30*day)
	c := Certificate{
		File: "/c", KeyFile: "/k", Load: loads(good, nil), Shown: shows(nil, nil),
		Look: at(map[string]any{"/k": Place{Mode: 0o600}}), Now: noon,
	}
	if change != nil {
		change(&c)
	}
	return c
}

func holds(pid int, err error) func() (Program, error) {
	return func() (Program, error) { return Program{"thing", pid}, err }
}

func memory(m Memory) func() (Memory, error) { return func() (Memory, error) { return m, nil } }

func TestEachCheck(t *testing.T) {
	port := func(err error) Check { return NameserverPort(fails(err)) }
	has := func(paths ...string) func(string) bool {
		return func(path string) bool { return slices.Contains(paths, path) }
	}
	kernel := func(n int, err error) Check {
		return Forwarding(func(string) (int, error) { return n, err })
	}
	inodes := Space{Bytes: 100 << 30, FreeBytes: 50 << 30, Files: 1000, FreeFiles: 500}
	for _, tt := range []struct {
		name  string
		check Check
		level string
		found string // part of it
	}{
		{"settings", Settings("/etc/s.json", nil), OK, "/etc/s.json"},
		{"settings with faults", Settings("", errors.New("2 faults\n  a: b")), Fault, "2 faults"},

		{"engine", DockerAnswers("/s", answers(known)), OK, "Docker 20.10.24+dfsg1 at /s"},
		{"engine that is new", DockerAnswers("/s", answers(engine.Info{Version: "2.0.0-beta.24", API: "1.56"})), OK, "2.0.0-beta.24"},
		{"engine that is down", DockerAnswers("/s", silent), Fault, "it is down"},
		{"engine for others", DockerAnswers("/s", func(context.Context) (engine.Info, error) { return engine.Info{}, syscall.EACCES }), Skipped, "group of /s"},
		{"engine that is old", DockerAnswers("/s", answers(engine.Info{Version: "19.03.15", API: "1.40"})), Fault, "older than 20.10"},
		{"engine that is a little old", DockerAnswers("/s", answers(engine.Info{Version: "20.9", API: "1.9"})), Fault, "older"},
		{"engine of its own kind", DockerAnswers("/s", answers(engine.Info{API: "new"})), Warning, `"new"`},

		{"runtime", RuntimeKnown("docker.runtime", "runsc", "", false, answers(known), prints("runsc version 1", nil)), OK, "runsc version 1"},
		{"runtime that is offline by itself", OfflineRuntime("runc", answers(known)), OK, "runc, for"},
		{"runtime that could be offline", OfflineRuntime("runsc", answers(known)), Warning, "runsc-offline"},
		{"runtime that is unknown offline", OfflineRuntime("shim", answers(known)), Skipped, "neither"},
		{"runtime offline of an engine that is down", OfflineRuntime("runc", silent), Skipped, "does not answer"},
		{"runtime that links", LinkedRuntime("gvisor", answers(engine.Info{GVisor: []string{"gvisor"}, Linked: map[string]string{"gvisor": "gvisor-linked"}, Programs: map[string]string{"gvisor": "/bin/runsc-freezer"}}), has("/bin/runsc-linker")), OK, "gvisor-linked"},
		{"runtime that links without its program", LinkedRuntime("gvisor", answers(engine.Info{GVisor: []string{"gvisor"}, Linked: map[string]string{"gvisor": "gvisor-linked"}, Programs: map[string]string{"gvisor": "/bin/runsc-freezer"}}), has("/bin/runsc-freezer")), Fault, "/bin/runsc-linker"},
		{"runtime that links on another host", LinkedRuntime("gvisor", answers(engine.Info{GVisor: []string{"gvisor"}, Linked: map[string]string{"gvisor": "gvisor-linked"}, Programs: map[string]string{"gvisor": "/bin/runsc-freezer"}}), has()), OK, "gvisor-linked"},
		{"runtime that could link", LinkedRuntime("gvisor", answers(engine.Info{GVisor: []string{"gvisor"}, Programs: map[string]string{"gvisor": "/bin/runsc-freezer"}}), has()), Warning, "gvisor-linked"},
		{"runtime of somebody's own that does not link", LinkedRuntime("runsc", answers(known), has()), Skipped, "/bin/runsc is not"},
		{"runtime that cannot link", LinkedRuntime("runc", answers(known), has()), Skipped, "not gVisor"},
		{"runtime that does not freeze", FreezingRuntime("runsc", answers(known)), Warning, "/bin/runsc itself"},
		{"runtime that freezes", FreezingRuntime("gvisor", answers(engine.Info{GVisor: []string{"gvisor"}, Programs: map[string]string{"gvisor": "/bin/runsc-freezer"}})), OK, "/bin/runsc-freezer"},
		{"runtime that is a shim of gVisor's", FreezingRuntime("gvisor", answers(engine.Info{GVisor: []string{"gvisor"}})), Warning, "calls gvisor itself"},
		{"runtime that freezes by itself", FreezingRuntime("runc", answers(known)), Skipped, "is not gVisor"},
		{"runtime that freezes, of an engine that is down", FreezingRuntime("runsc", silent), Skipped, "does not answer"},
		{"runtime that boots through both programs", BootPrograms("runsc", answers(known), has("/bin/gvisor-bin/gvisor_sentry", "/bin/gvisor-bin/gvisor-sentry-prewarmer")), OK, "through /bin/gvisor-bin"},
		{"runtime that boots by itself", BootPrograms("runsc", answers(known), has()), OK, "runsc itself"},
		{"runtime without a sentry", BootPrograms("runsc", answers(known), has("/bin/gvisor-bin/gvisor-sentry-prewarmer")), Fault, "no gvisor_sentry"},
		{"runtime without a prewarmer", BootPrograms("runsc", answers(known), has("/bin/gvisor-bin/gvisor_sentry")), Warning, "no gvisor-sentry-prewarmer"},
		{"runtime that boots no gVisor", BootPrograms("runc", answers(known), has()), Skipped, "is not"},
		{"runtime that boots, of an engine that is down", BootPrograms("runsc", silent, has()), Skipped, "does not answer"},
		{"runtime without a program", RuntimeKnown("docker.runtime", "shim", "", false, answers(known), prints("", errDown)), OK, "known"},
		{"runtime that is weaker", RuntimeKnown("docker.runtime", "runc", "", false, answers(known), prints("runc 1", nil)), Warning, "share the host's kernel"},
		{"runtime that is unknown", RuntimeKnown("docker.runtime", "kata", "", false, answers(known), nil), Fault, "does not know the runtime kata; it knows runc, runsc, shim"},
		{"runtime that is unknown, accepted", RuntimeKnown("docker.runtime", "kata", "", true, answers(known), nil), Warning, "accepted"},
		{"runtime that nobody needs", RuntimeKnown("docker.eventsRuntime", "kata", "no events", false, answers(known), nil), Skipped, "no events"},
		{"runtime that is broken", RuntimeKnown("docker.runtime", "runsc", "", false, answers(known), prints("", errDown)), Fault, "/bin/runsc does not run: it is down"},
		{"runtime of no engine", RuntimeKnown("docker.runtime", "runsc", "", false, silent, nil), Skipped, "Docker"},

		{"image", ImageThere("i:1", "2", answers(known), func(context.Context) (string, error) { return "2", nil }), OK, "i:1, version 2"},
		{"image of another version", ImageThere("i:1", "2", answers(known), func(context.Context) (string, error) { return "1", nil }), Fault, "is version 1, and this build goes with version 2"},
		{"image of somebody else", ImageThere("i:1", "2", answers(known), func(context.Context) (string, error) { return "", nil }), OK, "not this project's"},
		{"image that is missing", ImageThere("i:1", "2", answers(known), func(context.Context) (string, error) { return "", errDown }), Fault, "it is down"},

		{"image of no engine", ImageThere("i:1", "2", silent, nil), Skipped, "Docker"},

		{"rules", RulesUsable(true, false, fails(nil)), OK, "can be made"},
		{"rules that are refused", RulesUsable(true, false, fails(errDown)), Fault, "it is down"},
		{"rules that are refused, accepted", RulesUsable(true, true, fails(errDown)), Warning, "accepted"},
		{"rules for others", RulesUsable(false, false, fails(errDown)), Skipped, "only root"},

		{"leftovers", Leftovers(true, finds(0, nil)), OK, "nothing"},
		{"leftovers that there are", Leftovers(true, finds(2, nil)), Warning, "thing 0; thing 1"},
		{"leftovers that are many", Leftovers(true, finds(12, nil)), Warning, "thing 9; and 2 more"},
		{"leftovers unseen", Leftovers(true, finds(0, errDown)), Skipped, "it is down"},
		{"leftovers for others", Leftovers(false, finds(0, errDown)), Skipped, "only root"},
		{"forwarding", kernel(1, nil), OK, ""},
		{"no forwarding", kernel(0, nil), Warning, "forwards nothing"},
		{"forwarding unknown", kernel(0, errDown), Skipped, "it is down"},

		{"port", port(nil), OK, ""},
		{"port taken", port(syscall.EADDRINUSE), Fault, "another program has port 53"},
		{"port for others", port(syscall.EACCES), Skipped, "only root"},
		{"port of no host", port(errDown), Skipped, "it is down"},

		{"rights", Rights(0), OK, "root"},
		{"rights of others", Rights(1000), Warning, "uid 1000"},

		{"folder", Folder("dataDir", "/d", at(map[string]any{"/d": folder})), OK, "/d"},
		{"folder to be", Folder("dataDir", "/d", at(nil)), OK, "is made"},
		{"folder that is a file", Folder("dataDir", "/d", at(map[string]any{"/d": Place{Mode: 0o600}})), Fault, "not a folder"},
		{"folder for all", Folder("dataDir", "/d", at(map[string]any{"/d": Place{Mode: fs.ModeDir | 0o777}})), Fault, "others may write to /d (mode 0777)"},
		{"folder of somebody", Folder("dataDir", "/d", at(map[string]any{"/d": Place{Mode: fs.ModeDir | 0o755, UID: 7}})), Warning, "uid 7"},
		{"folder that is read-only", Folder("dataDir", "/d", at(map[string]any{"/d": Place{Mode: fs.ModeDir | 0o755, Unwritable: syscall.EROFS}})), Fault, "read-only file system"},
		{"folder out of sight", Folder("dataDir", "/d", at(map[string]any{"/d": fs.ErrPermission})), Skipped, "only root"},
		{"folder that is broken", Folder("dataDir", "/d", at(map[string]any{"/d": errDown})), Fault, "it is down"},

		{"socket", Socket("/r/s", "/r", 0o600, at(map[string]any{"/r": folder, "/r/s": own})), OK, "mode 0600"},
		{"socket to be", Socket("/r/s", "/r", 0o600, at(map[string]any{"/r": folder})), OK, "is made"},
		{"socket and folder to be", Socket("/r/s", "/r", 0o600, at(nil)), OK, "is made"},
		{"socket for all", Socket("/r/s", "/r", 0o600, at(map[string]any{"/r": folder, "/r/s": Place{Mode: fs.ModeSocket | 0o666}})), Fault, "everybody may connect"},
		{"socket for peers", Socket("/r/s", "/r", 0o666, at(map[string]any{"/r": folder, "/r/s": others})), OK, "mode 0666"},
		{"socket for peers in a closed folder", Socket("/r/s", "/r", 0o666, at(map[string]any{"/r": Place{Mode: fs.ModeDir | 0o700}, "/r/s": others})), Warning, "cannot reach /r/s, because its folder has the mode 0700"},
		{"socket in a closed folder", Socket("/r/s", "/r", 0o600, at(map[string]any{"/r": Place{Mode: fs.ModeDir | 0o700}, "/r/s": own})), OK, "mode 0600"},
		{"socket in a folder for all", Socket("/r/s", "/r", 0o600, at(map[string]any{"/r": Place{Mode: fs.ModeDir | 0o777}, "/r/s": own})), Fault, "others may put their own socket into /r"},
		{"socket that is a file", Socket("/r/s", "/r", 0o600, at(map[string]any{"/r": folder, "/r/s": Place{}})), Fault, "not a socket"},
		{"socket out of sight", Socket("/r/s", "/r", 0o600, at(map[string]any{"/r": folder, "/r/s": fs.ErrPermission})), Skipped, "permission"},

		{"address", TCPAddress("tcp.listen", "[::1]:7", 0, fails(nil), nil), OK, "[::1]:7 is free"},
		{"address of the service", TCPAddress("tcp.listen", ":7", 11, fails(syscall.EADDRINUSE), holds(11, nil)), OK, "thing (pid 11) listens at :7"},
		{"address that is taken", TCPAddress("tcp.listen", ":7", 11, fails(syscall.EADDRINUSE), holds(12, nil)), Fault, "thing (pid 12) listens at :7"},
		{"address that is taken by who is not seen", TCPAddress("tcp.listen", ":7", 0, fails(syscall.EADDRINUSE), holds(0, errDown)), Fault, "another program listens at :7: it is down"},
		{"address that is taken, for others", TCPAddress("tcp.listen", ":7", 0, fails(syscall.EADDRINUSE), holds(0, syscall.EACCES)), Skipped, "only root"},
		{"address that the service does not have", TCPAddress("tcp.listen", ":7", 11, fails(nil), nil), Warning, "pid 11) does not listen at :7"},
		{"address of another host", TCPAddress("tcp.listen", "10.9.9.9:7", 0, fails(syscall.EADDRNOTAVAIL), nil), Fault, "not an address of this host"},
		{"address for others", TCPAddress("tcp.listen", ":7", 0, fails(syscall.EACCES), nil), Skipped, "only root"},
		{"address that is broken", TCPAddress("tcp.listen", ":7", 0, fails(errDown), nil), Fault, "it is down"},

		{"tokens", TCPTokens("/t", fails(nil)), OK, "/t"},
		{"tokens that cannot be", TCPTokens("/t", fails(errDown)), Fault, "it is down"},
		{"tokens for others", TCPTokens("/t", fails(syscall.EACCES)), Skipped, "only the owner of /t"},

		{"certificate", certificate(nil).Valid(), OK, "valid until 2026-12-20 12:00 UTC"},
		{"certificate that is shown", certificate(func(c *Certificate) { c.Shown = shows(lasting(-60*day, 30*day), nil) }).Valid(), OK, "valid until"},
		{"certificate that is none", certificate(func(c *Certificate) { c.Load = loads(nil, errDown) }).Valid(), Fault, "it is down"},
		{"certificate for others", certificate(func(c *Certificate) { c.Load = loads(nil, fs.ErrPermission) }).Valid(), Skipped, "only the owner of /k"},
		{"key for all", certificate(func(c *Certificate) { c.Look = at(map[string]any{"/k": Place{Mode: 0o644}}) }).Valid(), Fault, "others may open the key /k (mode 0644)"},
		{"key that a group may write", certificate(func(c *Certificate) { c.Look = at(map[string]any{"/k": Place{Mode: 0o660}}) }).Valid(), Fault, "mode 0660"},
		{"key for a group", certificate(func(c *Certificate) { c.Look = at(map[string]any{"/k": Place{Mode: 0o640}}) }).Valid(), OK, "valid"},
		{"certificate that has expired", certificate(func(c *Certificate) { c.Load = loads(lasting(-60*day, -time.Minute), nil) }).Valid(), Fault, "/c has expired, on 2026-11-20 11:59 UTC"},
		{"certificate of tomorrow", certificate(func(c *Certificate) { c.Load = loads(lasting(day, 60*day), nil) }).Valid(), Fault, "/c is not valid before 2026-11-21"},
		{"certificate that expires soon", certificate(func(c *Certificate) { c.Load = loads(lasting(-60*day, 13*day), nil) }).Valid(), Warning, "/c expires on 2026-12-03"},
		{"certificate that is short-lived", certificate(func(c *Certificate) { c.Load = loads(lasting(-3*day, 3*day), nil) }).Valid(), OK, "valid"},
		{"certificate at the end of a short life", certificate(func(c *Certificate) { c.Load = loads(lasting(-5*day, day), nil) }).Valid(), Warning, "expires on"},
		{"certificate that is not shown yet", certificate(func(c *Certificate) { c.Shown = shows(lasting(-60*day, day), nil) }).Valid(), Warning, "another certificate, which expires on 2026-11-21"},
		{"certificate that is not shown", certificate(func(c *Certificate) { c.Shown = shows(nil, errDown) }).Valid(), OK, "valid"},

		{"own addresses", OwnAddresses([]string{"203.0.113.7"}, cloud([]string{"203.0.113.8"}, nil)), OK, "203.0.113.7 by egress.ownAddresses; 203.0.113.8 by the cloud's metadata now"},
		{"own addresses of a cloud that names none", OwnAddresses(nil, cloud(nil, nil)), OK, "names none"},
		{"own addresses without a cloud", OwnAddresses(nil, cloud(nil, errDown)), OK, "no cloud's metadata answers now"},
		{"own addresses of a cloud that is not asked", OwnAddresses(nil, nil), OK, "egress.askMetadata"},

		{"idle memory", IdleMemory(memory(Memory{Wanted: true, Compressed: true})), OK, "give their memory to zram"},
		{"idle memory that is not wanted", IdleMemory(memory(Memory{Compressed: true})), OK, "idle.reclaimAfter"},
		{"idle memory without zram", IdleMemory(memory(Memory{Wanted: true})), OK, "zramctl"},
		{"idle memory with a disk", IdleMemory(memory(Memory{Wanted: true, Compressed: true, Disk: true})), OK, "secrets would be written"},
		{"idle memory that is protected", IdleMemory(memory(Memory{Wanted: true, Compressed: true, Fault: syscall.EROFS})), Warning, "read-only"},
		{"idle memory that is unknown", IdleMemory(func() (Memory, error) { return Memory{}, errDown }), Skipped, errDown.Error()},

		{"disk", Disk("x", "/d", disk(inodes, nil)), OK, "50.0 of 100.0 GiB free at /d"},
		{"disk that fills", Disk("x", "/d", disk(Space{Bytes: 100 << 30, FreeBytes: 9 << 30}, nil)), Warning, "9.0 of 100.0 GiB"},
		{"disk that is full", Disk("x", "/d", disk(Space{Bytes: 100 << 30, FreeBytes: 2<<30 - 1}, nil)), Fault, "GiB"},
		{"disk that is small", Disk("x", "/d", disk(Space{Bytes: 1 << 29, FreeBytes: 1 << 29}, nil)), Fault, "0.5 of 0.5 GiB"},
		{"disk without inodes", Disk("x", "/d", disk(Space{Bytes: 100 << 30, FreeBytes: 50 << 30, Files: 1000, FreeFiles: 19}, nil)), Fault, "19 of 1000 inodes"},
		{"disk with few inodes", Disk("x", "/d", disk(Space{Bytes: 100 << 30, FreeBytes: 50 << 30, Files: 1000, FreeFiles: 99}, nil)), Warning, "99 of 1000 inodes"},
		{"disk without a journal", Disk("x", "/d", disk(Space{Bytes: 100 << 30, FreeBytes: 50 << 30, NoJournal: true}, nil)), Warning, "without a journal"},
		{"disk that fills without a journal", Disk("x", "/d", disk(Space{Bytes: 100 << 30, FreeBytes: 1 << 30, NoJournal: true}, nil)), Fault, "1.0 of 100.0 GiB"},
		{"disk that does not answer", Disk("x", "/d", disk(Space{}, errDown)), Skipped, "it is down"},

		{"clock", clocks(noon.Add(-time.Hour), true, nil).Right(answers(known)), OK, ""},
		{"clock before the build", clocks(noon.Add(time.Hour), true, nil).Right(answers(known)), Fault, "before this build was made"},
		{"clock of the engine ahead", clocks(time.Time{}, true, nil).Right(answers(engine.Info{Ahead: time.Minute})), Fault, "differs by 1m0s"},
		{"clock of the engine behind", clocks(time.Time{}, true, nil).Right(answers(engine.Info{Ahead: -time.Minute})), Fault, "differs by 1m0s"},
		{"clock that runs free", clocks(time.Time{}, false, nil).Right(silent), Warning, "nothing keeps the clock right"},
		{"clock unknown", clocks(time.Time{}, false, errDown).Right(silent), Skipped, "it is down"},

		{"service", ServiceAnswers("/s", "v1", healthy(func(*types.Health) {})), OK, "sandboxd v1 answers at /s"},
		{"service that is down", ServiceAnswers("/s", "v1", func(context.Context) (types.Health, error) { return types.Health{}, errDown }), Fault, "it is down"},
		{"service that was never there", ServiceAnswers("/s", "v1", func(context.Context) (types.Health, error) { return types.Health{}, syscall.ENOENT }), Warning, "there is no /s"},
		{"service for others", ServiceAnswers("/s", "v1", func(context.Context) (types.Health, error) { return types.Health{}, syscall.EACCES }), Skipped, "owner of /s"},
		{"service that is another", ServiceAnswers("/s", "v1", healthy(func(h *types.Health) { *h = types.Health{} })), Fault, "is not sandboxd"},
		{"service with a problem", ServiceAnswers("/s", "v1", healthy(func(h *types.Health) { h.Problem = "no engine" })), Fault, "commands cannot run: no engine"},
		{"service with warnings", ServiceAnswers("/s", "v1", healthy(func(h *types.Health) { h.Warnings = []string{"a", "b"} })), Warning, "a; b"},
		{"service of another build", ServiceAnswers("/s", "v2", healthy(func(*types.Health) {})), Warning, "sandboxd is v1, and this command is v2"},
		{"service with settings that wait", ServiceAnswers("/s", "v1", healthy(func(h *types.Health) { h.Settings.Pending = []string{"listen"} })), Warning, "listen"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.check.Look(t.Context())
			if got.Level != tt.level || !strings.Contains(got.Found, tt.found) {
				t.Errorf("%+v", got)
			}
			// What is wrong has a remedy.
			if bad := got.Level == Fault || got.Level == Warning; bad != (got.Remedy != "") {
				t.Errorf("%s: remedy %q", got.Level, got.Remedy)
			}
		})
	}
}

func TestResolvers(t *testing.T) {
	ask := func(_ context.Context, server, _ string) (string, error) {
		switch {
		case strings.HasPrefix(server, "up"):
			return "NXDOMAIN", nil
		case strings.HasPrefix(server, "grudging"):
			return "REFUSED", nil
		}
		return "", errDown
	}
	for _, tt := range []struct {
		servers []string
		want    string
	}{
		{[]string{"up1", "up2"}, "ok ok"},
		{[]string{"down", "up"}, "warning ok"},
		{[]string{"up", "down"}, "ok warning"},
		{[]string{"down", "gone"}, "fault fault"},
		{[]string{"grudging"}, "warning"},
		{[]string{"down"}, "fault"},
	} {
		var levels []string
		for _, check := range (Upstreams{Key: "k", Servers: tt.servers}).Resolvers("example.org", ask) {
			levels = append(levels, check.Look(t.Context()).Level)
		}
		if got := strings.Join(levels, " "); got != tt.want {
			t.Errorf("%q: %s, want %s", tt.servers, got, tt.want)
		}
	}
	none := (Upstreams{Key: "k", Err: errDown}).Resolvers("example.org", ask)
	if f := none[0].Look(t.Context()); len(none) != 1 || f.Level != Fault || !strings.Contains(f.Found, "it is down") {
		t.Errorf("%+v", f)
	}
}

// A resolver that says nothing keeps nobody waiting.
func TestResolverThatIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask := func(ctx context.Context, _, _ string) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}
		begun := time.Now()
		f := (Upstreams{Key: "k", Servers: []string{"silent"}}).Resolvers("example.org", ask)[0].Look(t.Context())
		if f.Level != Fault || !strings.Contains(f.Found, "no answer within 2s") || time.Since(begun) > 3*askLimit {
			t.Errorf("%+v after %v", f, time.Since(begun))
		}
	})
}

func TestRun(t *testing.T) {
	check := func(level string) Check {
		return Check{"is " + level, func(ctx context.Context) Finding {
			if _, bounded := ctx.Deadline(); !bounded {
				t.Error("a check is not bounded")
			}
			return Finding{Level: level}
		}}
	}
	var told []string
	r := Run(t.Context(), []Check{check(OK), check(OK), check(Warning), check(Fault), check(Skipped)}, func(f Finding) { told = append(told, f.Check) })
	if diff := cmp.Diff([]string{"is ok", "is ok", "is warning", "is fault", "is skipped"}, told); diff != "" {
		t.Error(diff)
	}
	if got, want := r.Summary(), "5 checks: 2 ok, 1 warning, 1 fault, 1 skipped"; got != want {
		t.Errorf("%s", got)
	}
}
