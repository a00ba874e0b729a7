package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
)

func TestAttach(t *testing.T) {
	goOn := make(chan struct{})
	l := newLab(t, sandboxtest.Started(func(_ context.Context, c warm.Command, out session.Output) (warm.Result, error) {
		_ = out(session.Stdout, []byte("hello\n"))
		select {
		case <-goOn:
			return warm.Result{Result: session.Result{ExitCode: 3}}, nil
		case signal := <-c.Signals:
			return warm.Result{Result: session.Result{Signal: signal}}, nil
		}
	}))
	if got := l.ok("", "attach", "--user", "alice"); got != "EXEC ID  STATE  ATTACHED  BEGUN  OUTPUT  COMMAND\n" {
		t.Errorf("%q", got)
	}
	first, err := l.StartExec(t.Context(), "a", sandbox.Request{Command: "echo hello"}, true)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.ok("", "attach", "--user", "alice"); !strings.Contains(got, first.ID) || !strings.Contains(got, "running") || !strings.Contains(got, "echo hello") {
		t.Errorf("%q", got)
	}
	close(goOn)
	stdout, _, err := l.run(t.Context(), "", "attach", "--user", "alice", first.ID)
	var code exitCode
	if !errors.As(err, &code) || code != 3 || stdout != "hello\n" {
		t.Errorf("%q, %v", stdout, err)
	}

	goOn = make(chan struct{})
	second, err := l.StartExec(t.Context(), "a", sandbox.Request{Command: "sleep"}, true)
	if err != nil {
		t.Fatal(err)
	}
	l.ok("", "attach", "--user", "alice", "--kill", second.ID)
	if got := l.ok("", "attach", "--user", "alice"); !strings.Contains(got, "exited 3") || !strings.Contains(got, "SIGKILL") {
		t.Errorf("%q", got)
	}
	if got := l.ok("", "attach", "--user", "alice", "--json"); !strings.Contains(got, `"execId": "`+second.ID+`"`) {
		t.Errorf("%q", got)
	}

	at, err := l.StartExec(t.Context(), "a", sandbox.Request{Command: "top", Terminal: &specs.Box{Height: 1, Width: 1}}, true)
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"--user alice x-1":      `there is no exec "x-1"`,
		"--user alice " + at.ID: "has a terminal, and there is none on stdin",
		"x-1":                   "give --user USER or --sandbox ID",
		"--user alice x-1 x-2":  "at most 1 arg",
	} {
		if _, _, err := l.run(t.Context(), "", append([]string{"attach"}, strings.Fields(line)...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", line, err)
		}
	}
	at.Input.Signal(1)
}

// nohup leaves a stdin that nobody can read.
func TestStdinThatIsNotOpenForReading(t *testing.T) {
	l := newLab(t, sandboxtest.Started(func(_ context.Context, c warm.Command, _ session.Output) (warm.Result, error) {
		if c.Stdin != nil {
			return warm.Result{}, errors.New("there is stdin")
		}
		return warm.Result{}, nil
	}))
	stdin, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	root := rootCommand()
	root.SetArgs([]string{"--socket", l.socket, "exec", "-u", "alice", "-i", "--", "true"})
	root.SetIn(stdin)
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestExecThatGoesOnSaysHowToComeBack(t *testing.T) {
	l := newLab(t, nil)
	_, stderr, err := l.run(t.Context(), "", "exec", "--user", "alice", "--detach-on-disconnect", "--", "true")
	if list, _ := l.DetachedExecs("a"); err != nil || len(list) != 1 || stderr != "sandbox: to come back: sandbox attach --user alice "+list[0].ID+"\r\n" {
		t.Errorf("%q, %v", stderr, err)
	}
}

func TestStatesOfExecs(t *testing.T) {
	ended, killed, code := types.DetachedExec{}.CreatedAt, "SIGKILL", 0
	for want, e := range map[string]types.DetachedExec{
		"running":   {},
		"failed":    {EndedAt: &ended, Error: &types.Error{}},
		"timed out": {EndedAt: &ended, Result: &types.Result{TimedOut: true, Signal: &killed}},
		"SIGKILL":   {EndedAt: &ended, Result: &types.Result{Signal: &killed}},
		"exited 0":  {EndedAt: &ended, Result: &types.Result{ExitCode: &code}},
	} {
		if got := stateOf(e); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
