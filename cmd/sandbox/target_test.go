package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

func TestNeeds(t *testing.T) {
	for _, tt := range []struct {
		name   string
		grants []string
		id     string // its form
		want   types.Permissions
	}{
		{"nothing", nil, "cli-alice", types.Permissions{}},
		{"held by every sandbox", []string{"@workspace"}, "cli-alice", types.Permissions{}},
		{"refused by the call", []string{"@root", "@write:", "@read:x", "network"}, "cli-alice", types.Permissions{}},
		{"network and events", []string{"@network", "@events"}, "cli-alice-????????", types.Permissions{Network: true, Events: true}},
		{"paths", []string{"@write:/a:b", "@read:/c", "@workspace"}, "cli-alice-????????",
			types.Permissions{WriteDirs: []string{"/a:b"}, ReadDirs: []string{"/c"}}},
		{"credentials", []string{"@secret:github", "@secret:*"}, "cli-alice-????????", types.Permissions{Secrets: []string{"github"}}},
	} {
		id, got := needs("alice", tt.grants)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", tt.name, diff)
		}
		if len(id) != len(tt.id) || !strings.HasPrefix(id, strings.TrimRight(tt.id, "?")) {
			t.Errorf("%s: id %s", tt.name, id)
		}
	}
	same, _ := needs("alice", []string{"@network", "@read:/a"})
	again, _ := needs("alice", []string{"@read:/a", "@workspace", "@network", "@network"})
	other, _ := needs("alice", []string{"@network", "@write:/a"})
	if same != again || same == other {
		t.Errorf("%s %s %s", same, again, other)
	}
}

func TestUsersSandboxHoldsWhatItsCallsNeed(t *testing.T) {
	l := newLab(t, nil)
	l.ok("", "explain", "--user", "alice", "--grant", "@network", "--grant", "@write:/home/x", "--allow-domain", "a.org")
	id, _ := needs("alice", []string{"@network", "@write:/home/x"})
	box, err := l.Get(id)
	if err != nil || box.User.String() != "alice" || !box.Network || box.Events || len(box.WriteDirs) != 1 || box.WriteDirs[0].String() != "/home/x" || len(box.ReadDirs) > 0 {
		t.Errorf("registered %+v, %v", box, err)
	}
}

// Who looks at a user who is none, or ends what there is of it, is told so and makes nobody a user.
func TestLookingRegistersNobody(t *testing.T) {
	l := newLab(t, nil)
	before := l.List()
	for _, line := range []string{
		"process list", "process get web", "process logs web", "process stop web", "process stop-all", "process rm web",
		"attach", "explain --grant @network --allow-domain a.org", "ls", "read notes.txt", "cp :notes.txt .", "pause", "resume",
	} {
		_, _, err := l.run(t.Context(), "", append(strings.Fields(line), "--user", "nobody")...)
		if err == nil || !strings.HasPrefix(err.Error(), `user "nobody" has no sandbox: `) {
			t.Errorf("%s: %v", line, err)
		}
	}
	if list := l.List(); len(list) != len(before) {
		t.Errorf("registered: %+v", list)
	}
	l.ok("", "write", "--user", "nobody", "notes.txt", "hi")
	if out := l.ok("", "read", "--user", "nobody", "notes.txt"); out != "hi" {
		t.Errorf("%q", out)
	}
}

// A user may be called what is put after another user's id for grants. Nobody looks at the other's.
func TestLookingAtAnotherUsersSandbox(t *testing.T) {
	l := newLab(t, nil)
	l.ok("", "write", "--user", "alice", "notes.txt", "hi")
	l.ok("", "explain", "--user", "alice", "--grant", "@network", "--allow-domain", "a.org")
	granted, _ := needs("alice", []string{"@network"})
	other := strings.TrimPrefix(granted, "cli-")
	want := `sandbox "` + granted + `" belongs to user "alice", not "` + other + `": name one with --sandbox`
	for _, line := range []string{"read notes.txt", "process list", "explain"} {
		_, _, err := l.run(t.Context(), "", append(strings.Fields(line), "--user", other)...)
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// Pausing a user means all that was started for the user here, whatever it was granted, and registers nothing.
func TestPauseOfAUser(t *testing.T) {
	l := newLab(t, nil)
	if _, _, err := l.run(t.Context(), "", "pause", "--user", "alice"); err == nil || !strings.HasPrefix(err.Error(), `user "alice" has no sandbox of this command line: `) {
		t.Error(err)
	}
	l.ok("", "process", "start", "--user", "alice", "--allow-domain", "example.org", "--", "./worker")
	l.ok("", "process", "start", "--user", "alice", "--", "./worker")
	for _, other := range []string{"cli-alice-x", "cli-alicea", "cli-bob"} { // somebody else's, and another user's
		user := strings.TrimPrefix(strings.TrimSuffix(other, "-x"), "cli-")
		if _, _, err := l.Put(other, sandbox.Registration{UserID: user}); err != nil {
			t.Fatal(err)
		}
	}
	before := len(l.List())
	granted, _ := needs("alice", []string{"@network"})
	for _, tt := range []struct {
		command, state string
		paused         bool
	}{{"pause", "is paused", true}, {"resume", "is resumed", false}} {
		want := "sandbox cli-alice " + tt.state + "\nsandbox " + granted + " " + tt.state + "\n"
		if got := l.ok("", tt.command, "--user", "alice"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		for _, box := range l.List() {
			id := box.ID.String()
			if box.Paused != (tt.paused && (id == "cli-alice" || id == granted)) {
				t.Errorf("after %s, %s is paused: %v", tt.command, id, box.Paused)
			}
		}
	}
	if after := len(l.List()); after != before {
		t.Errorf("%d sandboxes became %d", before, after)
	}
}

// A settings file that cannot be read is said before anyone is asked.
func TestSettingsAreReadBeforeTheServiceIsAsked(t *testing.T) {
	root := rootCommand()
	root.SetArgs([]string{"--socket", "/nonexistent", "--settings", "/nonexistent/settings.json", "--", "true"})
	if err := root.ExecuteContext(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "cannot read the settings: open /nonexistent/settings.json: ") {
		t.Error(err)
	}
}

func TestExplanationFitsTheTerminal(t *testing.T) {
	e := types.Explanation{
		UserID: "alice", WorkingDir: "/home", Runtime: "runsc", Home: "/tmp", HomeWhy: "the home is read-only", Network: "none", Events: "none",
		Fingerprint: "9f86d081884c7d65", Warm: true,
		Places: []types.Place{
			{Path: "/home", Mode: "readOnly", Why: "the home; no grant lets this call write to all of it"},
			{Path: "/home/.ssh\n", Mode: "hidden", Why: "on the deny list: SSH keys"},
		},
	}
	const want = `PLACE           MODE      WHY
/home           readOnly  the home; no…
"/home/.ssh\n"  hidden    on the deny l…

user       alice, in /home
home       /tmp: the home is read-only
network    none
events     none
container  9f86d081884c under runsc, warm
`
	var out bytes.Buffer
	if err := printExplanation(&out, e, 40); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	out.Reset()
	e.Node = "host-2"
	if err := printExplanation(&out, e, 0); err != nil || !strings.Contains(out.String(), "write to all of it\n") || !strings.HasSuffix(out.String(), "\nhost       host-2\n") {
		t.Errorf("%v\n%s", err, out.String())
	}
	out.Reset()
	e.Secrets = []types.SecretUse{
		{Name: "github", Hosts: []string{"api.github.com", "*.github.com"}, Env: "GITHUB_TOKEN"},
		{Name: "npm", Hosts: []string{"registry.npmjs.org"}}, {Name: "pypi", Unused: "the call has no network"},
	}
	const secrets = `
secret     github: put into what is sent to api.github.com, *.github.com; GITHUB_TOKEN has its placeholder
secret     npm: put into what is sent to registry.npmjs.org
secret     pypi: not put in: the call has no network
`
	if err := printExplanation(&out, e, 40); err != nil || !strings.Contains(out.String(), secrets) {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestProgressIsDrawnAndNotTooOften(t *testing.T) {
	var out bytes.Buffer
	at := time.Unix(0, 0)
	p := &progress{from: strings.NewReader(strings.Repeat("x", 40<<20)), out: &out, name: "a", total: 40 << 20, begun: at, drawn: at}
	p.now = func() time.Time { at = at.Add(60 * time.Millisecond); return at }
	buffer := make([]byte, 10<<20)
	for range 4 {
		if _, err := p.Read(buffer); err != nil {
			t.Fatal(err)
		}
	}
	want := clearLine + "a  50%  20.0 MiB of 40.0 MiB  166.7 MiB/s" + clearLine + "a  100%  40.0 MiB of 40.0 MiB  166.7 MiB/s"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	// Nobody looks at what is no terminal.
	if from, finish := watch(p.from, &out, "a", 1<<40); from != p.from {
		finish()
		t.Error("progress without a terminal")
	}
	if _, err := p.Read(buffer); err != io.EOF {
		t.Error(err)
	}
	// A file that changes is copied as long as it was.
	for text, want := range map[string]string{"123456789": "", "123": "its last 2 bytes are gone"} {
		p = &progress{from: strings.NewReader(text), out: io.Discard, total: 5, begun: at, drawn: at, now: p.now}
		got, err := io.ReadAll(p)
		if ok := err == nil && string(got) == "12345"; want == "" && !ok || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("of %s: %s, %v", text, got, err)
		}
	}
}

func TestTexts(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1024: "1.0 KiB", 1 << 30: "1.0 GiB", 1 << 50: "1024.0 TiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	for name, want := range map[string]string{"é ü": "é ü", "a\tb": `"a\tb"`, "\xff": `"\xff"`, "\u202e": `"\u202e"`} {
		if got := printable(name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}
