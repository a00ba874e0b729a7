package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// keeper is the part of a lab that has alice's processes.
type keeper struct {
	records []process.Record
	notices []string
	// started is what was asked for last, stopped the signals and ids, read how much of a log.
	started sandbox.ProcessRequest
	stopped []string
	read    sandbox.LogQuery
	// printed is what the log has; follow goes on with it.
	printed sandbox.LogPart
	follow  func(context.Context, func(sandbox.LogPart) error) error
}

func (k *keeper) StartProcess(_ context.Context, _ string, r sandbox.ProcessRequest) (process.Record, []string, error) {
	k.started = r
	return process.Record{ID: "p-aaaaaaaaaaaa", Status: process.Running}, k.notices, nil
}

func (k *keeper) Processes(string) ([]process.Record, error) { return k.records, nil }

func (k *keeper) Process(_, id string) (process.Record, error) {
	at := slices.IndexFunc(k.records, func(r process.Record) bool { return r.ID == id })
	if at < 0 {
		return process.Record{}, fmt.Errorf("process %q is not there: %w", id, cerrdefs.ErrNotFound)
	}
	return k.records[at], nil
}

func (k *keeper) StopProcess(_ context.Context, _, id string, signal syscall.Signal) (process.Record, error) {
	r, err := k.Process("", id)
	k.stopped = append(k.stopped, unix.SignalName(signal)+" "+id)
	r.Status, r.Signal = process.Stopped, unix.SignalName(signal)
	return r, err
}

func (k *keeper) StopProcesses(context.Context, string) ([]process.Record, error) {
	return k.records, nil
}

func (k *keeper) RemoveProcess(_ context.Context, _, id string) error {
	_, err := k.Process("", id)
	k.records = slices.DeleteFunc(k.records, func(r process.Record) bool { return r.ID == id })
	return err
}

func (k *keeper) ReadProcessLog(_ context.Context, _, _ string, q sandbox.LogQuery) (sandbox.LogPart, error) {
	k.read = q
	return k.printed, nil
}

func (k *keeper) FollowProcessLog(ctx context.Context, _, _ string, q sandbox.LogQuery, each func(sandbox.LogPart) error) error {
	k.read = q
	return k.follow(ctx, each)
}

func (l *lab) List() []sandbox.Sandbox {
	box, err := l.Get("agent-7")
	if err != nil {
		l.t.Error(err)
	}
	return []sandbox.Sandbox{box}
}

// three processes: one runs, one waits for its next start, one was killed. Two have one name.
func three(now time.Time) []process.Record {
	one := 1
	return []process.Record{
		{ID: "p-aaaaaaaaaaaa", DesiredState: process.Running, Status: process.Running, PID: 4711,
			Intent: process.Intent{UserID: "alice", SandboxID: "agent-7", Name: "web", Command: "python3 -m http.server 8000", Cwd: "/home/site", Home: "/tmp",
				Grants: []string{"@workspace", "@write:/a\x1b"}},
			LastStartedAt: now.Add(-3 * time.Minute), LogPath: "/data/process.log"},
		{ID: "p-bbbbbbbbbbbb", DesiredState: process.Running, Status: process.Exited, ExitCode: &one, RestartCount: 12, LostBytes: 7,
			Intent:       process.Intent{UserID: "alice", SandboxID: "agent-7", Name: "twin", Argv: []string{"./worker", "a b", "\x1b[31m"}, KeepAlive: true},
			LastExitedAt: now.Add(-5 * time.Second), NextRestartAt: now.Add(10*time.Second + time.Millisecond)},
		{ID: "p-cccccccccccc", DesiredState: process.Stopped, Status: process.Stopped, Signal: "SIGKILL",
			Intent:       process.Intent{UserID: "alice", SandboxID: "agent-7", Name: "twin", Command: "sleep 9"},
			LastExitedAt: now.Add(-50 * time.Hour), Reason: "odd\n"},
	}
}

func TestProcessStart(t *testing.T) {
	t.Setenv("TOKEN", "s3cret")
	l := newLab(t)
	l.notices = []string{"name has 81 characters\x1b"}
	args := []string{"process", "start", "-u", "alice", "-n", "web", "-k", "--grant", "@workspace", "--allow-domain", "a.org", "--package-manager", "node",
		"-C", "site", "--home", "/home", "-e", "A=1", "-e", "TOKEN", "--secret", "TOKEN", "-l", "--"}
	stdout, stderr, err := l.run(t.Context(), "", append(args, "sleep -f 1")...)
	if err != nil || stdout != "p-aaaaaaaaaaaa\n" || stderr != `sandbox: "name has 81 characters\x1b"`+"\n" {
		t.Errorf("%q %q %v", stdout, stderr, err)
	}
	want := sandbox.ProcessRequest{
		Name: "web", Command: "sleep -f 1", KeepAlive: true, Login: true, Cwd: "site",
		Confinement: sandbox.Confinement{Permissions: []string{"@workspace", "@network"}, AllowedDomains: []string{"a.org"}, PackageManagers: []string{"node"}, Home: "/home"},
		Env:         map[string]string{"A": "1", "TOKEN": "s3cret"}, Secrets: map[string]string{"TOKEN": "s3cret"},
	}
	if diff := cmp.Diff(want, l.started); diff != "" {
		t.Errorf("want (-), asked (+):\n%s", diff)
	}
	if id, _ := needs("alice", want.Permissions); !l.put[id].Network {
		t.Errorf("registered %+v", l.put)
	}
	if got := l.ok("", "process", "start", "--sandbox", "agent-7", "--json", "--", "echo", "-n"); !strings.Contains(got, `"id": "p-aaaaaaaaaaaa"`) || !strings.Contains(got, `"notices": [`) {
		t.Error(got)
	}
	if !cmp.Equal(l.started.Argv, []string{"echo", "-n"}) || l.started.Command != "" || l.started.KeepAlive {
		t.Errorf("%+v", l.started)
	}
	for flags, message := range map[string]string{
		"": "requires at least 1 arg", "--secret NOTHERE -- ls": "--secret NOTHERE: no such variable", "--secret A=topsecret -- ls": "--secret A=…: give its name alone",
		"-e NOTHERE -- ls": "--env NOTHERE: no such variable", "--timeout 1s -- ls": "unknown flag",
	} {
		if _, _, err := l.run(t.Context(), "", append([]string{"process", "start", "-u", "alice"}, strings.Fields(flags)...)...); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v", flags, err)
		}
	}
}

func TestProcessesAreFound(t *testing.T) {
	l := newLab(t)
	l.records = three(time.Now())
	l.records[2].Name = "p-aaaaaaaaaaaa"
	for _, tt := range []struct{ word, want string }{ // want is the id, or a part of the error
		{"p-bbbbbbbbbbbb", "p-bbbbbbbbbbbb"},
		{"twin", "p-bbbbbbbbbbbb"},
		{"web", "p-aaaaaaaaaaaa"},
		{"p-aaaaaaaaaaaa", "p-aaaaaaaaaaaa"}, // which is another's name
		{"p-dddddddddddd", `process "p-dddddddddddd" is not there`},
		{"p-b", `no process has the id or the name "p-b"; "sandbox process list" shows which there are`},
		{"", `no process has the id or the name ""`},
	} {
		stdout, _, err := l.run(t.Context(), "", "process", "get", "-u", "alice", "--json", tt.word)
		if !strings.Contains(stdout+fmt.Sprint(err), tt.want) || (err == nil) != strings.HasPrefix(tt.want, "p-") {
			t.Errorf("%q: %s %v", tt.word, stdout, err)
		}
	}
	l.records[2].Name = "twin"
	if _, _, err := l.run(t.Context(), "", "process", "stop", "-u", "alice", "twin"); err == nil || !strings.Contains(err.Error(), `2 processes have the name "twin": give an id, which is one of p-bbbbbbbbbbbb, p-cccccccccccc`) {
		t.Error(err)
	}
}

func TestProcessStopAndRemove(t *testing.T) {
	l := newLab(t)
	l.records = three(time.Now())
	for _, tt := range []struct{ line, want string }{
		{"stop -u alice web", "p-aaaaaaaaaaaa web: stopped by SIGTERM\n"},
		{"stop --sandbox agent-7 --signal sigint p-bbbbbbbbbbbb", "p-bbbbbbbbbbbb twin: stopped by SIGINT\n"},
		{"stop -u alice -s KILL web", "p-aaaaaaaaaaaa web: stopped by SIGKILL\n"},
		{"stop-all -u alice", "p-aaaaaaaaaaaa web: running\np-bbbbbbbbbbbb twin: exited with code 1\np-cccccccccccc twin: stopped by SIGKILL: \"odd\\n\"\n"},
		{"rm -u alice web p-cccccccccccc", "p-aaaaaaaaaaaa\np-cccccccccccc\n"},
	} {
		if got := l.ok("", append([]string{"process"}, strings.Fields(tt.line)...)...); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.line, got, tt.want)
		}
	}
	if want := []string{"SIGTERM p-aaaaaaaaaaaa", "SIGINT p-bbbbbbbbbbbb", "SIGKILL p-aaaaaaaaaaaa"}; !cmp.Equal(l.stopped, want) {
		t.Errorf("%q", l.stopped)
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
		"rm -u alice": "requires at least 1 arg", "list": "at least one of the flags",
	} {
		if _, _, err := l.run(t.Context(), "", append([]string{"process"}, strings.Fields(line)...)...); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestProcessLogs(t *testing.T) {
	l := newLab(t)
	l.records = three(time.Now())
	l.printed = sandbox.LogPart{Data: []byte("a\x1b\xff\n"), Truncated: true, Notice: "cut\x1b"}
	stdout, stderr, err := l.run(t.Context(), "", "process", "logs", "-u", "alice", "-n", "7", "web")
	if err != nil || stdout != "a\x1b\xff\n" || !strings.HasPrefix(stderr, `sandbox: "cut\x1b"`+"\n") || !strings.Contains(stderr, "these are the last bytes") || l.read.Lines != 7 {
		t.Errorf("%q %q %v", stdout, stderr, err)
	}
	if got := l.ok("", "process", "log", "-u", "alice", "--json", "web"); !strings.Contains(got, `"encoding": "base64"`) || l.read.Lines != 0 {
		t.Error(got)
	}
	for flags, message := range map[string]string{"-n 0 web": "--lines 0", "-n 10001 web": `lines "10001" is not a number from 1 to 10000`, "-f other": `name "other"`, "-f p-dddddddddddd": "is not there"} {
		if _, _, err := l.run(t.Context(), "", append([]string{"process", "logs", "-u", "alice"}, strings.Fields(flags)...)...); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v", flags, err)
		}
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
			l := newLab(t)
			l.records = three(time.Now())
			l.follow = func(ctx context.Context, each func(sandbox.LogPart) error) error {
				err := each(sandbox.LogPart{Data: []byte("first\n")})
				<-ctx.Done()
				return errors.Join(err, ctx.Err())
			}
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
	l := newLab(t)
	l.records = three(time.Now())
	l.follow = func(_ context.Context, each func(sandbox.LogPart) error) error {
		return errors.Join(each(sandbox.LogPart{Data: []byte("a\xff")}), each(sandbox.LogPart{Notice: "cut\n"}))
	}
	for id, want := range map[string]string{"p-bbbbbbbbbbbb": "has exited with code 1", "p-cccccccccccc": "was stopped by SIGKILL"} {
		stdout, stderr, err := l.run(t.Context(), "", "process", "logs", "-u", "alice", "-f", id)
		if err != nil || stdout != "a\xff" || stderr != "sandbox: \"cut\\n\"\nsandbox: the process "+want+"\n" {
			t.Errorf("%q %q %v", stdout, stderr, err)
		}
	}
	if got := lastText(types.ProcessLogEnd{End: true}); got != "was removed" {
		t.Error(got)
	}
}

func TestProcessCompletions(t *testing.T) {
	l := newLab(t)
	l.records = three(time.Now())
	l.records[2].Name = ""
	l.records[1].Name = "a\tb"
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
	if len(l.put) > 0 {
		t.Errorf("registered %v", l.put)
	}
	l.socket = "/nowhere"
	if got := l.ok("", "__complete", "process", "get", "-u", "alice", ""); got != ":4\n" {
		t.Errorf("without a service: %q", got)
	}
}
