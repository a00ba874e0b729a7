package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/hints"
	"github.com/daycare-run/sandbox/internal/warm"
)

// To name something to reach is to ask for the network, in the call and for the user's sandbox.
func TestNamesImplyTheNetwork(t *testing.T) {
	for _, tt := range []struct {
		name, flags string
		want        types.Explain
	}{
		{"nothing", "", types.Explain{}},
		{"a domain", "--allow-domain example.org", types.Explain{Permissions: []string{"@network"}, AllowedDomains: []string{"example.org"}}},
		{"several", "--grant @workspace --allow-domain a.org,*.b.org --allow-domain * --package-manager node,go --package-manager rust",
			types.Explain{Permissions: []string{"@workspace", "@network"}, AllowedDomains: []string{"a.org", "*.b.org", "*"}, PackageManagers: []string{"node", "go", "rust"}}},
		{"a preset and the grant", "--grant @network --package-manager node",
			types.Explain{Permissions: []string{"@network"}, PackageManagers: []string{"node"}}},
		{"no name in it", "--allow-domain= --grant @workspace", types.Explain{Permissions: []string{"@workspace"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, decided := decidedLab(t)
			flags := append(strings.Fields(tt.flags), "--user", "alice")
			l.ok("", append(append([]string{"exec"}, flags...), "--", "true")...)
			l.ok("", append([]string{"explain"}, flags...)...)
			var got types.Explain
			l.asked("explain", &got)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("explain: want (-), asked (+):\n%s", diff)
			}
			l.explains(flags, decided())
			id, _ := needs("alice", got.Permissions)
			box, err := l.Get(id)
			if network := len(got.AllowedDomains)+len(got.PackageManagers) > 0; err != nil || box.User.String() != "alice" || box.Network != network || len(box.WriteDirs)+len(box.ReadDirs) > 0 {
				t.Errorf("registered %+v, %v", box, err)
			}
		})
	}
}

func TestCompletions(t *testing.T) {
	l := newLab(t, nil)
	for line, want := range map[string]string{
		"exec --package-manager ": "dart\ndebian\ndotnet\ngo\njava\njava+\nnode\nphp\nphp+\npython\nruby\nruby+\nrust\nrust+\n",
		"explain --allow-domain ": "",
		"egress log --verdict ":   "allowed\ndenied\nfailed\nlimited\nmalformed\n",
		"egress log --via ":       "dns\ntls\nhttp\ntcp\nudp\n",
	} {
		words := append([]string{"__complete"}, strings.Split(line, " ")...)
		if got := l.ok("", words...); got != want+":4\n" { // no names of files
			t.Errorf("%s: %q", line, got)
		}
	}
}

// A command is told what it did not get, after its own output and with its own exit code.
func TestRefusalsAreToldAtTheEnd(t *testing.T) {
	var l *lab
	l = newLab(t, func(_ context.Context, spec dockerexec.Spec, c warm.Command, out session.Output) (warm.Result, error) {
		c.Started()
		for range 3 {
			l.Refuse(spec, decisions.Decision{Name: "files.example.org", Via: decisions.DNS, Verdict: decisions.Denied, Reason: types.ReasonNotAllowed})
		}
		return warm.Result{Result: session.Result{ExitCode: 6}}, out(session.Stderr, []byte("curl: (6)\n"))
	})
	_, stderr, err := l.run(t.Context(), "", "exec", "-u", "alice", "--allow-domain", "b.org", "--stats", "--", "curl")
	var exit exitCode
	if !errors.As(err, &exit) || exit != 6 {
		t.Error(err)
	}
	const want = "curl: (6)\nsandbox: egress denied files.example.org (3 times, dns): the name is not allowed for this call; allow it with --allow-domain files.example.org\nsandbox: the command exited with 6"
	if !strings.HasPrefix(stderr, want) {
		t.Errorf("%s, want %s", stderr, want)
	}
}

func TestRefusals(t *testing.T) {
	const no, allow = types.ReasonNotAllowed, "; allow it with --allow-domain "
	denied := func(name string) types.Refusal {
		return types.Refusal{Name: name, Verdict: "denied", Via: "dns", Reason: no, Count: 1}
	}
	for _, tt := range []struct {
		name string
		r    types.Result
		want []string
	}{
		{"nothing", types.Result{}, nil},
		{"a name in two ways", types.Result{Egress: []types.Refusal{
			{Name: "a.org", Verdict: "denied", Via: "dns", Reason: no, Count: 1}, denied("b.org"), {Name: "a.org", Verdict: "denied", Via: "tls", Reason: no, Count: 2},
		}}, []string{"denied a.org (3 times, dns and tls): " + no + allow + "a.org", "denied b.org (once, dns): " + no + allow + "b.org"}},
		{"an allowed name that failed", types.Result{Egress: []types.Refusal{{Name: "a.org", Verdict: "failed", Via: "dns", Reason: "no DNS server answered", Count: 1}}},
			[]string{"failed a.org (once, dns): no DNS server answered"}},
		{"denied for another reason", types.Result{Egress: []types.Refusal{{Name: "a.org", Verdict: "denied", Via: "dns", Reason: "the name has no address that this call may reach", Count: 1}}},
			[]string{"denied a.org (once, dns): the name has no address that this call may reach"}},
		{"a port", types.Result{Egress: []types.Refusal{{Name: "a.org", Port: 22, Verdict: "denied", Via: "tcp", Reason: "closed", Count: 2}}},
			[]string{"denied a.org:22 (2 times, tcp): closed"}},
		{"no name", types.Result{Egress: []types.Refusal{{Verdict: "denied", Via: "tls", Reason: no, Count: 1}}},
			[]string{"denied a host without a name (once, tls): " + no}},
		{"names that are no advice", types.Result{Egress: []types.Refusal{
			denied("*"), denied("*.org"), denied("*.a.org"), denied("a.org;id"), denied("localhost"), denied("10.0.0.1"), denied("_x.a.org"), denied("A.org"), denied("\x1b[31m.org"), denied("bücher.de"),
		}}, []string{
			"denied * (once, dns): " + no, "denied *.org (once, dns): " + no, "denied *.a.org (once, dns): " + no, "denied a.org;id (once, dns): " + no, "denied localhost (once, dns): " + no,
			"denied 10.0.0.1 (once, dns): " + no, "denied _x.a.org (once, dns): " + no, "denied A.org (once, dns): " + no, `denied "\x1b[31m.org" (once, dns): ` + no, "denied bücher.de (once, dns): " + no,
		}},
		{"denied by the call itself", types.Result{Egress: []types.Refusal{denied("a.closed.org")}},
			[]string{"denied a.closed.org (once, dns): " + no + "; --deny-domain takes it away"}},
		{"more", types.Result{Egress: []types.Refusal{denied("a.org")}, EgressMore: 12},
			[]string{"denied a.org (once, dns): " + no + allow + "a.org", `refused 12 more names; "sandbox egress log" has the latest of them`}},
	} {
		var out bytes.Buffer
		tellRefusals(&out, tt.r, advice{hints.CLI, []string{"*.closed.org"}})
		want := ""
		for _, line := range tt.want {
			want += "sandbox: egress " + line + "\n"
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", tt.name, diff)
		}
	}
}

func TestHintsAreToldInTheDoorsWords(t *testing.T) {
	r := types.Result{Hints: []types.Hint{
		{Kind: types.HintNoNetwork, Message: "of the API"}, {Kind: types.HintLeftovers, Count: 1, Commands: []string{"a\x1b[2Jb"}}, {Kind: "later", Message: "of a later service"},
	}}
	var out bytes.Buffer
	tellHints(&out, r, advice{door: hints.Wrapper})
	const want = "sandbox: the command had no network; if it is needed, add names to network.allowedDomains of the settings\n" +
		`sandbox: "1 background process was ended: a\x1b[2Jb"` + "\nsandbox: of a later service\n"
	if out.String() != want {
		t.Errorf("%s, want %s", out.String(), want)
	}
}

// decide adds decisions of alice's and bob's to the lab's log.
func (l *lab) decide(at time.Time, names ...string) {
	for _, name := range names {
		l.Decisions().Add(decisions.Decision{Time: at, User: "alice", Name: name, Via: decisions.DNS, Type: "A", Verdict: decisions.Denied, Reason: types.ReasonNotAllowed})
		l.Decisions().Add(decisions.Decision{Time: at, User: "bob", Name: name, Via: decisions.TLS, Port: 443, Verdict: decisions.Allowed, Reason: "the name is allowed"})
	}
}

func TestEgressLog(t *testing.T) {
	l := newLab(t, nil)
	now := time.Now()
	l.decide(now.Add(-48*time.Hour), "a.org")
	l.decide(now, "b.org", "b.org")
	clock, day := now.Format(time.TimeOnly), now.Add(-48*time.Hour).Format("Jan _2 15:04")
	lines := func(flags ...string) []string {
		var got []string
		for line := range strings.Lines(l.ok("", append([]string{"egress", "log"}, flags...)...)) {
			got = append(got, strings.Join(strings.Fields(line), " "))
		}
		return got
	}
	const heading = "TIME USER VERDICT VIA NAME COUNT REASON"
	alice, bob := " alice denied dns b.org 2 the name is not allowed for this call", " bob allowed tls b.org:443 2 the name is allowed"
	oldAlice, oldBob := strings.Replace(alice, "b.org 2", "a.org 1", 1), strings.Replace(bob, "b.org:443 2", "a.org:443 1", 1)
	day = strings.Join(strings.Fields(day), " ")
	for _, tt := range []struct {
		flags []string
		want  []string
	}{
		{nil, []string{heading, day + oldAlice, day + oldBob, clock + alice, clock + bob}},
		{[]string{"--since", "10m"}, []string{heading, clock + alice, clock + bob}},
		{[]string{"--since", now.Add(-time.Second).Format(time.RFC3339), "-u", "bob"}, []string{heading, clock + bob}},
		{[]string{"--verdict", "denied", "--via", "dns", "-n", "1"}, []string{heading, clock + alice}},
		{[]string{"--name", "A.org"}, []string{heading, day + oldAlice, day + oldBob}},
		{[]string{"--limit", "0"}, []string{heading}},
	} {
		if diff := cmp.Diff(tt.want, lines(tt.flags...)); diff != "" {
			t.Errorf("%q: want (-), got (+):\n%s", tt.flags, diff)
		}
	}
	if got := l.ok("", "egress", "log", "--json", "--limit", "1"); !strings.HasPrefix(got, "[\n  {\n    \"seq\": 6,") || !strings.Contains(got, `"port": 443,`) {
		t.Error(got)
	}
	if _, _, err := l.run(t.Context(), "", "egress", "lgo"); err == nil || !strings.Contains(err.Error(), `unknown command "lgo"`) {
		t.Error(err)
	}
	for flags, message := range map[string]string{
		"--verdict deny": `verdict "deny" is not one of`, "--since soon": `--since "soon" is neither`, "--since -1m": "is neither", "--limit 10001": `limit "10001"`, "x": "too many arguments",
	} {
		if _, _, err := l.run(t.Context(), "", append([]string{"egress", "log"}, strings.Fields(flags)...)...); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v", flags, err)
		}
	}
}

// following runs a command line that goes on, and returns its lines and, once those have ended, its error.
func (l *lab) following(ctx context.Context, args ...string) (lines *bufio.Scanner, over <-chan error) {
	return l.followingTo(io.Discard, ctx, args...)
}

// followingTo also keeps what it says on stderr.
func (l *lab) followingTo(stderr io.Writer, ctx context.Context, args ...string) (lines *bufio.Scanner, over <-chan error) {
	read, write := io.Pipe()
	root := rootCommand()
	root.SetArgs(append([]string{"--socket", l.socket}, args...))
	root.SetOut(write)
	root.SetErr(stderr)
	ended := make(chan error, 1)
	go func() {
		err := root.ExecuteContext(ctx)
		_ = write.Close()
		ended <- err
	}()
	return bufio.NewScanner(read), ended
}

func TestEgressLogFollows(t *testing.T) {
	interrupt := func(_ *lab, _ context.CancelFunc) { _ = unix.Kill(unix.Getpid(), unix.SIGINT) }
	for _, tt := range []struct {
		name  string
		flags []string
		end   func(*lab, context.CancelFunc)
		want  error
	}{
		{"interrupted", nil, interrupt, exitCode(130)},
		{"cancelled", []string{"--json"}, func(_ *lab, cancel context.CancelFunc) { cancel() }, exitCode(130)},
		{"the service stops", nil, func(l *lab, _ context.CancelFunc) { close(l.stopping) }, client.ErrStopped},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l.decide(time.Now(), "a.org")
			lines, over := l.following(ctx, append([]string{"egress", "log", "-f", "--user", "alice", "--limit", "1"}, tt.flags...)...)
			var seen []string
			for lines.Scan() {
				for _, name := range []string{"NAME", "a.org", "b.org"} {
					if strings.Contains(lines.Text(), name) {
						seen = append(seen, name)
					}
				}
				switch seen[len(seen)-1] {
				case "a.org":
					l.decide(time.Now(), "b.org")
				case "b.org":
					tt.end(l, cancel)
				}
			}
			if err := <-over; !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if got := strings.TrimPrefix(fmt.Sprint(seen), "[NAME "); strings.Trim(got, "[]") != "a.org b.org" {
				t.Errorf("%s", seen)
			}
		})
	}
}

func TestDecisionsFitTheTerminal(t *testing.T) {
	at := time.Date(2026, 1, 2, 15, 4, 5, 0, time.Local)
	long := types.Decision{
		Time: at, Count: 12, UserID: "alice-with-a-very-long-name", Name: "pages.example.org.evil.test", Via: types.ViaHTTP, Port: 80,
		Verdict: types.VerdictMalformed, Reason: "what was sent is not a valid HTTP request",
	}
	odd := types.Decision{Time: at.AddDate(0, 0, -1), Count: 1, Name: "a\x1b[31m", Via: types.ViaDNS, Verdict: types.VerdictDenied, Reason: "x"}
	for columns, want := range map[int]string{
		80: `TIME          USER          VERDICT    VIA   NAME           COUNT  REASON
15:04:05      alice-with-…  malformed  http  …evil.test:80  12     what was sen…
Jan  1 15:04  -             denied     dns   "a\x1b[31m"    1      x
`,
		0: `TIME          USER                         VERDICT    VIA   NAME                            COUNT  REASON
15:04:05      alice-with-a-very-long-name  malformed  http  pages.example.org.evil.test:80  12     what was sent is not a valid HTTP request
Jan  1 15:04  -                            denied     dns   "a\x1b[31m"                     1      x
`,
	} {
		var out bytes.Buffer
		table := decisionsIn(&out, columns, func() time.Time { return at.Add(time.Hour) })
		if err := table.print(long, odd); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%d columns: want (-), got (+):\n%s", columns, diff)
		}
		for line := range strings.Lines(out.String()) {
			if n := len([]rune(line)) - 1; columns > 0 && n > columns {
				t.Errorf("%d columns of %d: %s", n, columns, line)
			}
		}
	}
}
