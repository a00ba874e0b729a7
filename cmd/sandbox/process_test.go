package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// three processes: one runs, one waits for its next start, one was killed. Two have one name.
func three(now time.Time) []process.Record {
	one, at := 1, now.Add(-60*time.Hour)
	return []process.Record{
		{ID: "p-aaaaaaaaaaaa", CreatedAt: at, Intent: process.Intent{
			UserID: "alice", SandboxID: "agent-7", Name: "web", Command: "python3 -m http.server 8000", Cwd: "/home/site", Home: "/tmp",
			Grants: []string{"@workspace", "@write:/a\x1b"},
		}, DesiredState: process.Running, Status: process.Running, PID: 4711, LastStartedAt: now.Add(-3 * time.Minute), LogPath: "/data/process.log"},
		{ID: "p-bbbbbbbbbbbb", CreatedAt: at.Add(1), Intent: process.Intent{
			UserID: "alice", SandboxID: "agent-7", Name: "twin", Argv: []string{"./worker", "a b", "\x1b[31m"}, KeepAlive: true,
		}, DesiredState: process.Running, Status: process.Exited, ExitCode: &one, RestartCount: 12, LostBytes: 7,
			LastStartedAt: now.Add(-time.Minute), LastExitedAt: now.Add(-5 * time.Second), BackoffMs: 60_000, NextRestartAt: now.Add(10*time.Second + time.Millisecond)},
		{ID: "p-cccccccccccc", CreatedAt: at.Add(2), Intent: process.Intent{UserID: "alice", SandboxID: "agent-7", Name: "twin", Command: "sleep 9"},
			DesiredState: process.Stopped, Status: process.Stopped, Signal: "SIGKILL", LastExitedAt: now.Add(-50 * time.Hour), Reason: "odd\n"},
	}
}

func TestProcessStart(t *testing.T) {
	t.Setenv("TOKEN", "s3cret")
	l := newLab(t, nil)
	args := []string{"process", "start", "-u", "alice", "-n", strings.Repeat("w", 80) + "\x1b", "-k", "--grant", "@workspace", "--allow-domain", "a.org", "--package-manager", "node",
		"-C", "site", "--home", "/home", "-e", "A=1", "-e", "TOKEN", "--secret", "TOKEN", "-l", "--"}
	stdout, stderr, err := l.run(t.Context(), "", append(args, "sleep -f 1")...)
	started, _ := l.Processes("a")
	if err != nil || len(started) != 1 || stdout != started[0].ID+"\n" || !strings.HasPrefix(stderr, "sandbox: name has 81 characters and was cut") {
		t.Fatalf("%q %q %v", stdout, stderr, err)
	}
	want := process.Intent{
		UserID: "alice", SandboxID: started[0].SandboxID, Name: strings.Repeat("w", 80), Command: "sleep -f 1", KeepAlive: true, Login: true, Cwd: "/home/site",
		Grants: []string{"@workspace", "@network"}, AllowedDomains: []string{"a.org"}, PackageManagers: []string{"node"}, Home: "/home",
		Env: map[string]string{"A": "1", "TOKEN": "s3cret"}, Egress: started[0].Egress,
	}
	if diff := cmp.Diff(want, started[0].Intent); diff != "" {
		t.Errorf("want (-), started (+):\n%s", diff)
	}
	if secrets := map[string]string{"TOKEN": "s3cret"}; !cmp.Equal(l.Runner.Secrets, secrets) {
		t.Errorf("%v", l.Runner.Secrets)
	}
	if id, _ := needs("alice", want.Grants); started[0].SandboxID != id {
		t.Errorf("in sandbox %s, not %s", started[0].SandboxID, id)
	}
	var second types.StartedProcess
	decode(t, l.ok("", "process", "start", "--sandbox", "agent-7", "--json", "--", "echo", "-n"), &second)
	if !cmp.Equal(second.Argv, []string{"echo", "-n"}) || second.Command != "" || second.KeepAlive || second.Notices == nil || second.SandboxID != "agent-7" {
		t.Errorf("%+v", second)
	}
	for flags, message := range map[string]string{
		"": "requires at least 1 arg", "--secret NOTHERE -- ls": "--secret NOTHERE: no such variable", "--secret A=topsecret -- ls": "--secret A=…: give only its name",
		"-e NOTHERE -- ls": "--env NOTHERE: no such variable", "--timeout 1s -- ls": "unknown flag",
	} {
		if _, _, err := l.run(t.Context(), "", append([]string{"process", "start", "-u", "alice"}, strings.Fields(flags)...)...); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v", flags, err)
		}
	}
}

// decode reads JSON that a command has printed.
func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func TestProcessesAreFound(t *testing.T) {
	records := three(time.Now())
	l := newLab(t, nil, records...)
	records[2].Name = "p-aaaaaaaaaaaa"
	named := newLab(t, nil, records...)
	for _, tt := range []struct{ word, want string }{ // want is the id, or a part of the error
		{"p-bbbbbbbbbbbb", "p-bbbbbbbbbbbb"},
		{"twin", "p-bbbbbbbbbbbb"},
		{"web", "p-aaaaaaaaaaaa"},
		{"p-aaaaaaaaaaaa", "p-aaaaaaaaaaaa"}, // which is another's name
		{"p-dddddddddddd", `process "p-dddddddddddd" is not there`},
		{"p-b", `no process has the id or the name "p-b": list the processes to see which there are`},
		{"", `no process has the id or the name ""`},
	} {
		stdout, _, err := named.run(t.Context(), "", "process", "get", "-u", "alice", "--json", tt.word)
		if !strings.Contains(stdout+fmt.Sprint(err), tt.want) || (err == nil) != strings.HasPrefix(tt.want, "p-") {
			t.Errorf("%q: %s %v", tt.word, stdout, err)
		}
	}
	// Of two with one name it is the one that has not ended. Where neither has, an id has to be given.
	if stdout, _, err := l.run(t.Context(), "", "process", "get", "-u", "alice", "--json", "twin"); err != nil || !strings.Contains(stdout, "p-bbbbbbbbbbbb") {
		t.Error(stdout, err)
	}
	records[2] = records[0]
	records[2].ID, records[2].Name, records[2].CreatedAt = "p-cccccccccccc", "twin", records[1].CreatedAt.Add(1)
	if _, _, err := newLab(t, nil, records...).run(t.Context(), "", "process", "stop", "-u", "alice", "twin"); err == nil || !strings.Contains(err.Error(), `the processes p-bbbbbbbbbbbb and p-cccccccccccc both have the name "twin": give an id`) {
		t.Error(err)
	}
}

// wait outlasts a service that is stopping, then gone, and then there again.
func TestProcessWaitOutlastsARestart(t *testing.T) {
	l := newLab(t, nil, three(time.Now())...)
	waits := 0
	l.behind(func(next http.Handler, w http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, "/wait") {
			switch waits++; waits {
			case 1:
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = io.WriteString(w, `{"error":{"kind":"unavailable","message":"it is shutting down"}}`)
				return
			case 2:
				panic(http.ErrAbortHandler)
			}
		}
		next.ServeHTTP(w, req)
	})
	stdout, stderr, err := l.run(t.Context(), "", "process", "wait", "-u", "alice", "p-cccccccccccc")
	if !errors.Is(err, exitCode(137)) || stdout != "p-cccccccccccc twin: stopped by SIGKILL: \"odd\\n\"\n" || waits != 3 {
		t.Errorf("%q, %v, asked %d times", stdout, err, waits)
	}
	if stderr != "sandbox: waiting for the service: it is shutting down\n" {
		t.Errorf("%q", stderr)
	}
	l.socket = filepath.Join(t.TempDir(), "none") // never there, so nothing is waited for
	if _, _, err := l.run(t.Context(), "", "process", "wait", "-u", "alice", "p-cccccccccccc"); err == nil || !strings.Contains(err.Error(), "is sandboxd running?") {
		t.Error(err)
	}
}

// wait gives up when nothing has answered for two minutes. Outages with the service in between are not added up.
func TestProcessWaitGivesUp(t *testing.T) {
	type outage struct{ from, to time.Duration }
	for name, tt := range map[string]struct {
		outages []outage
		limit   time.Duration
		gone    time.Duration // when it gives up, about; 0 if it does not
	}{
		"two outages":    {[]outage{{10 * time.Second, 110 * time.Second}, {150 * time.Second, 250 * time.Second}}, 0, 0},
		"after an hour":  {[]outage{{time.Hour, time.Hour + time.Minute}}, 0, 0},
		"a long outage":  {[]outage{{time.Minute, time.Hour}}, 0, 3 * time.Minute},
		"a limit":        {[]outage{{time.Minute, time.Hour}}, 2 * time.Minute, 2 * time.Minute},
		"the second one": {[]outage{{time.Minute, 2 * time.Minute}, {3 * time.Minute, time.Hour}}, 0, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun, lost := time.Now(), errors.New("no service answers")
				end := begun.Add(2 * time.Hour)
				// next returns how long it is until an outage begins, which is not more than 0 in one.
				next := func() time.Duration {
					for _, o := range tt.outages {
						if now := time.Since(begun); now < o.to {
							return o.from - now
						}
					}
					return time.Until(end)
				}
				var notices strings.Builder
				_, err := outwait(t.Context(), &notices, client.Wait{Timeout: tt.limit},
					func(client.Wait) (types.WaitedProcess, error) {
						time.Sleep(max(next(), 0))
						if time.Now().Before(end) {
							return types.WaitedProcess{}, lost
						}
						return types.WaitedProcess{}, nil
					},
					func() bool { return next() > 0 })
				took := time.Since(begun)
				if gaveUp := errors.Is(err, lost); gaveUp != (tt.gone != 0) || gaveUp && (took-tt.gone).Abs() > 5*time.Second {
					t.Errorf("%v after %s", err, took)
				}
				if got := notices.String(); got != "sandbox: waiting for the service: no service answers\n" {
					t.Errorf("%q", got)
				}
			})
		})
	}
}

// wait ends with the process, and as it did.
func TestProcessWait(t *testing.T) {
	l := newLab(t, nil, three(time.Now())...)
	run := func(line string) (stdout, stderr string, err error) {
		return l.run(t.Context(), "", append([]string{"process", "wait"}, strings.Fields(line)...)...)
	}
	for _, tt := range []struct {
		line, stdout, stderr string
		code                 exitCode
	}{
		{"-u alice p-cccccccccccc", "p-cccccccccccc twin: stopped by SIGKILL: \"odd\\n\"\n", "", 137},
		{"-u alice --timeout 1ms web", "", "sandbox: process p-aaaaaaaaaaaa goes on after 1ms\n", 124},
	} {
		if stdout, stderr, err := run(tt.line); stdout != tt.stdout || stderr != tt.stderr || !errors.Is(err, tt.code) {
			t.Errorf("%s: %q %q %v", tt.line, stdout, stderr, err)
		}
	}
	for _, tt := range []struct {
		exit process.Exit
		want error
	}{{process.Exit{Code: 3}, exitCode(3)}, {process.Exit{}, nil}} {
		p := l.Start(process.Intent{Name: "job", Command: "x"})
		ended := make(chan error, 1)
		go func() { _, _, err := run("-u alice job"); ended <- err }()
		l.End(p, tt.exit)
		if err := <-ended; !errors.Is(err, tt.want) {
			t.Errorf("%+v: %v", tt.exit, err)
		}
	}
	var waited types.WaitedProcess
	stdout, _, err := run("-u alice --timeout 1ms --json web")
	if decode(t, stdout, &waited); !waited.TimedOut || waited.ID != "p-aaaaaaaaaaaa" || !errors.Is(err, exitCode(124)) {
		t.Errorf("%+v, %v", waited, err)
	}
	for line, message := range map[string]string{
		"-u alice --ready web": "no readiness check", "-u alice --timeout -1s web": "--timeout -1s: it must be more than 0", "-u alice other": `name "other"`,
	} {
		if _, _, err := run(line); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v", line, err)
		}
	}
	close(l.stopping)
	if _, _, err := run("-u alice --timeout 1ms web"); err == nil || !strings.Contains(err.Error(), "the service is shutting down, and the process goes on") {
		t.Errorf("the service stops: %v", err)
	}
}

func TestProcessStopAndRemove(t *testing.T) {
	records := three(time.Now())
	for n, id := range []string{"p-dddddddddddd", "p-eeeeeeeeeeee", "p-ffffffffffff"} {
		r := records[0]
		r.ID, r.Name, r.CreatedAt = id, fmt.Sprint("more", n), r.CreatedAt.Add(time.Duration(10+n))
		records = append(records, r)
	}
	l := newLab(t, nil, records...)
	for _, tt := range []struct{ line, want string }{
		{"stop -u alice web", "p-aaaaaaaaaaaa web: stopped by SIGTERM\n"},
		{"stop --sandbox agent-7 --signal sigint p-dddddddddddd", "p-dddddddddddd more0: stopped by SIGINT\n"},
		{"stop -u alice -s KILL more1", "p-eeeeeeeeeeee more1: stopped by SIGKILL\n"},
		{"stop -u alice p-cccccccccccc", "p-cccccccccccc twin: stopped by SIGKILL: \"odd\\n\"\n"}, // already
		{"stop-all -u alice", "p-bbbbbbbbbbbb twin: stopped with code 1\np-ffffffffffff more2: stopped by SIGTERM\n"},
		{"rm -u alice web p-cccccccccccc", "p-aaaaaaaaaaaa\np-cccccccccccc\n"},
		{"rm -u alice more0 more1 more2", "p-dddddddddddd\np-eeeeeeeeeeee\np-ffffffffffff\n"},
	} {
		if got := l.ok("", append([]string{"process"}, strings.Fields(tt.line)...)...); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.line, got, tt.want)
		}
	}
	if want := []string{"terminated p-aaaaaaaaaaaa", "interrupt p-dddddddddddd", "killed p-eeeeeeeeeeee", "terminated p-ffffffffffff"}; !cmp.Equal(l.Runner.Signals, want) {
		t.Errorf("%q", l.Runner.Signals)
	}
	stdout, _, err := l.run(t.Context(), "", "process", "rm", "-u", "alice", "web", "twin", "p-cccccccccccc")
	if stdout != "p-bbbbbbbbbbbb\n" || err == nil || !strings.Contains(err.Error(), `name "web"`) || !strings.Contains(err.Error(), `"p-cccccccccccc" is not there`) {
		t.Errorf("%q %v", stdout, err)
	}
	for line, want := range map[string]string{"rm -u alice --json web": "[]\n", "list -u alice --json": "[]\n", "stop-all -u alice --json": "[]\n", "stop-all -u alice": ""} {
		if stdout, _, _ := l.run(t.Context(), "", append([]string{"process"}, strings.Fields(line)...)...); stdout != want {
			t.Errorf("%s: %q", line, stdout)
		}
	}
	for line, message := range map[string]string{
		"stop -u alice -s SEGV p-bbbbbbbbbbbb": `signal "SEGV" is none of TERM, INT, HUP, KILL`, "stpo": `unknown command "stpo"`, "stop -u alice": "accepts 1 arg",
		"rm -u alice": "requires at least 1 arg", "list": "give --user USER or --sandbox ID",
	} {
		if _, _, err := l.run(t.Context(), "", append([]string{"process"}, strings.Fields(line)...)...); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestProcessLogs(t *testing.T) {
	l := newLab(t, nil, three(time.Now())...)
	web, err := l.Process("a", "p-aaaaaaaaaaaa")
	if err != nil {
		t.Fatal(err)
	}
	l.Print(web, strings.Repeat("a\x1b\xff\n", 200))
	stdout, stderr, err := l.run(t.Context(), "", "process", "logs", "-u", "alice", "-n", "7", "web")
	if err != nil || stdout != strings.Repeat("a\x1b\xff\n", 7) || stderr != "" {
		t.Errorf("%q %q %v", stdout, stderr, err)
	}
	var log types.ProcessLog
	decode(t, l.ok("", "process", "log", "-u", "alice", "--json", "web"), &log)
	if data, err := client.Decode(log.Data, log.Encoding); log.Encoding != types.Base64 || len(data) != 400 || err != nil {
		t.Errorf("%+v %v", log, err)
	}
	for flags, message := range map[string]string{"-n 0 web": "--lines 0", "-n 10001 web": `lines "10001" is not a number from 1 to 10000`, "-f other": `name "other"`, "-f p-dddddddddddd": "is not there"} {
		if _, _, err := l.run(t.Context(), "", append([]string{"process", "logs", "-u", "alice"}, strings.Fields(flags)...)...); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v", flags, err)
		}
	}
	// More than comes at once.
	l.Print(web, strings.Repeat("x", 2<<20))
	stdout, stderr, err = l.run(t.Context(), "", "process", "logs", "-u", "alice", "web")
	if err != nil || len(stdout) != 1<<20 || !strings.Contains(stderr, "these are the last bytes") {
		t.Errorf("%d bytes, %q %v", len(stdout), stderr, err)
	}
	stdout, stderr, err = l.run(t.Context(), "", "process", "logs", "-u", "alice", "--first", "-n", "201", "web")
	if err != nil || len(stdout) != 1<<20 || !strings.HasPrefix(stdout, "a\x1b\xff\n") || !strings.Contains(stderr, "these are the first bytes") {
		t.Errorf("%d bytes, %q %v", len(stdout), stderr, err)
	}
}

func TestProcessLogsFollow(t *testing.T) {
	for _, tt := range []struct {
		name, flags string
		end         func(l *lab, cancel context.CancelFunc)
		want        error
	}{
		{"interrupted", "", func(*lab, context.CancelFunc) { _ = unix.Kill(unix.Getpid(), unix.SIGINT) }, exitCode(130)},
		{"cancelled", "--json", func(_ *lab, cancel context.CancelFunc) { cancel() }, exitCode(130)},
		{"the service stops", "", func(l *lab, _ context.CancelFunc) { close(l.stopping) }, client.ErrStopped},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, nil)
			l.Print(l.Start(process.Intent{Name: "web", Command: "x"}), "first\n")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			lines, over := l.following(ctx, append([]string{"process", "logs", "-u", "alice", "-f", "web"}, strings.Fields(tt.flags)...)...)
			seen := 0
			for lines.Scan() {
				if !strings.Contains(lines.Text(), "first") {
					t.Errorf("%q", lines.Text())
				}
				seen++
				tt.end(l, cancel)
			}
			if err := <-over; !errors.Is(err, tt.want) || seen != 1 {
				t.Errorf("%d lines, %v, want %v", seen, err, tt.want)
			}
		})
	}
}

// The end of a process ends its log, and is told apart from what it has printed.
func TestProcessLogsEnd(t *testing.T) {
	l := newLab(t, nil)
	for want, exit := range map[string]process.Exit{"has exited with code 1": {Code: 1}, "was stopped by SIGKILL": {Signal: unix.SIGKILL}} {
		p := l.Start(process.Intent{Command: "x"})
		l.Print(p, "a\xff")
		if exit.Signal != 0 {
			if _, err := l.StopProcess(t.Context(), "a", p.ID, exit.Signal); err != nil {
				t.Fatal(err)
			}
		} else {
			l.End(p, exit)
		}
		stdout, stderr, err := l.run(t.Context(), "", "process", "logs", "-u", "alice", "-f", p.ID)
		if err != nil || stdout != "a\xff" || stderr != "sandbox: the process "+want+"\n" {
			t.Errorf("%q %q %v", stdout, stderr, err)
		}
	}
	if got := lastText(types.ProcessLogEnd{End: true}); got != "was removed" {
		t.Error(got)
	}
}

// What may be missing from a log is said beside it.
func TestProcessLogsNotice(t *testing.T) {
	l := newLab(t, nil)
	p := l.Start(process.Intent{Name: "web", Command: "x"})
	l.Print(p, "first\n")
	notices := &onText{text: "\n", then: func() { l.End(p, process.Exit{}) }}
	lines, over := l.followingTo(notices, t.Context(), "process", "logs", "-u", "alice", "-f", "web")
	for lines.Scan() {
		if err := os.Truncate(p.LogPath, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-over; err != nil || !strings.HasPrefix(notices.String(), "sandbox: the log was cut from 6 to 0 bytes") {
		t.Errorf("%q %v", notices.String(), err)
	}
}

// onText is a writer that does something when it first has a text.
type onText struct {
	strings.Builder
	text string
	then func()
}

func (o *onText) Write(p []byte) (int, error) {
	n, err := o.Builder.Write(p)
	if o.then != nil && strings.Contains(o.String(), o.text) {
		o.then()
		o.then = nil
	}
	return n, err
}

func TestProcessCompletions(t *testing.T) {
	records := three(time.Now())
	records[2].Name, records[1].Name = "", "a\tb"
	l := newLab(t, nil, records...)
	const a, b, c = "p-aaaaaaaaaaaa\tweb\n", "p-bbbbbbbbbbbb\t\"a\\tb\"\n", "p-cccccccccccc\tsleep 9\n"
	for line, want := range map[string]string{
		"process get -u alice ":                 a + b + c,
		"process logs --sandbox agent-7 -f ":    a + b + c,
		"process rm -u alice p-aaaaaaaaaaaa ":   b + c,
		"process stop -u alice p-aaaaaaaaaaaa ": "",
		"process stop -u bob ":                  "",
		"process stop -u alice --signal ":       "TERM\nINT\nHUP\nKILL\n",
		"process start -u alice --name ":        "",
	} {
		if got := l.ok("", append([]string{"__complete"}, strings.Split(line, " ")...)...); got != want+":4\n" { // no names of files
			t.Errorf("%s: %q", line, got)
		}
	}
	if list := l.List(); len(list) != 2 {
		t.Errorf("registered %v", list)
	}
	l.socket = "/nowhere"
	if got := l.ok("", "__complete", "process", "get", "-u", "alice", ""); got != ":4\n" {
		t.Errorf("without a service: %q", got)
	}
}
