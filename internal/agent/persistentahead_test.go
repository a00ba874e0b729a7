//go:build linux

package agent

import (
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// loggedIn has a line run as clients of E2B have it, in a shell that waits if there is one.
func loggedIn(line string) control.Request {
	run := shellRun("")
	run.Args, run.Env, run.Ahead = []string{"/bin/bash", "-l", "-c", line}, append(run.Env, "LANG=C.UTF-8", "HOME=/nosuch"), true
	return control.Request{Do: control.Begin, Run: run}
}

// isAhead is a line's beginning that says whether its shell has waited.
const isAhead = `while read -r l; do [[ $l == *ahead.2.so ]] && echo -n "ahead " && break; done </proc/$$/maps; `

func (l *persistentUnderTest) logIn(line string, change ...func(*control.Run)) string {
	l.t.Helper()
	r := loggedIn(line)
	for _, c := range change {
		c(r.Run)
	}
	stream, answer := l.ask(r)
	if answer.Fault != "" {
		return "fault: " + string(answer.Fault) + " " + answer.Message
	}
	if r.Run.Stdin {
		l.ask(control.Request{Do: control.Input, PID: answer.PID}, []byte("input\n")...)
		l.ask(control.Request{Do: control.CloseInput, PID: answer.PID})
	} else if r.Run.Terminal {
		return rest(l.t, stream)
	} else if _, said := l.ask(control.Request{Do: control.CloseInput, PID: answer.PID}); said.Fault == "" {
		l.t.Errorf("%s: a command without input takes some", line)
	}
	return rest(l.t, stream)
}

func (l *persistentUnderTest) ready() {
	l.t.Helper()
	l.ask(control.Request{Do: control.Ready})
}

// A shell waits in a persistent container while nothing else is there, and runs the next command if it fits.
func TestShellsAheadInAContainerPersistent(t *testing.T) {
	l := beginPersistentWith(t, compileAhead(t))
	for _, test := range []struct {
		line, want string
		change     func(*control.Run)
	}{
		{isAhead + "echo $0 $HOME $PWD; cat; exit 3", "ahead /bin/bash /nosuch /\n[3 0 false]", func(*control.Run) {}},
		{isAhead + "cat", "ahead input\n[0 0 false]", func(r *control.Run) { r.Stdin = true }},
		{"kill -9 $$", "[0 9 false]", func(*control.Run) {}},
		{"echo", "fault: cwd /nosuch: no such file or directory", func(r *control.Run) { r.Cwd = "/nosuch" }},
		{"sleep 100", "[0 9 true]", func(r *control.Run) { r.TimeoutMs = 100 }},
		{isAhead, "[1 0 false]", func(r *control.Run) { r.Env = append(r.Env, "LC_ALL=C") }},
		{isAhead + "[ -t 0 ] && echo terminal", "terminal\r\n[0 0 false]", func(r *control.Run) { r.Terminal = true }},
	} {
		l.ready()
		if got := l.logIn(test.line, test.change); got != test.want {
			t.Errorf("%s: %q, not %q", test.line, got, test.want)
		}
	}

	// After a command with Ahead the next shell is prepared without a request.
	waittest.Until(t, "a shell waits", func() bool { return strings.HasPrefix(l.logIn(isAhead+"echo"), "ahead") })
	if entries := l.list(); len(entries) != 0 {
		t.Errorf("a shell that waits is listed: %+v", entries)
	}

	// What a command leaves behind could reach a waiting shell, so there is none.
	l.ready()
	if got := l.logIn(isAhead + "sleep 765 >&- 2>&- & echo $!"); !strings.HasPrefix(got, "ahead") {
		t.Errorf("%q", got)
	}
	l.ready()
	if got := l.logIn(isAhead + "kill %1 || pkill -f 'sleep 765'"); strings.HasPrefix(got, "ahead") {
		t.Errorf("with something left behind: %q", got)
	}
	waittest.Until(t, "a shell waits again", func() bool {
		l.ready()
		return strings.HasPrefix(l.logIn(isAhead+"echo"), "ahead")
	})
	l.ask(loggedIn("sleep 100"))
	if got := l.logIn(isAhead + "echo"); strings.HasPrefix(got, "ahead") {
		t.Errorf("beside another: %q", got)
	}
}

// Whatever is at the socket's other end in place of a shell, a command waits for it no longer than for a start, and it can
// tell no more lies than the shell could that the command would have had.
func TestShellsAheadThatAreNone(t *testing.T) {
	waits := "/nosuch 2>/dev/null; printf . >&3; "
	for name, test := range map[string]struct{ does, want string }{
		"never waits":               {"/nosuch 2>/dev/null; exit; ", "begun\n[0 0 false]"},
		"ends":                      {waits + "exit; ", "begun\n[0 0 false]"},
		"says what is none":         {waits + `head -c 1 <&3 >/dev/null; printf '\143\0\0\0\1\0\0\0' >&3; exec sleep 764; `, "fault: " + string(wire.FaultAgent) + " prepare: operation not permitted"},
		"takes nothing":             {waits + "exec sleep 764; ", "fault: " + string(wire.FaultCommand) + " /bin/bash: it did not start within 8s: another process stopped it, or the machine is too busy"},
		"leaves its end to another": {waits + "sleep 764 & exec 3>&-; exit; ", "fault: " + string(wire.FaultCommand) + " /bin/bash: it did not start within 8s: another process stopped it, or the machine is too busy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := beginPersistentWith(t, test.does+"#")
			for i, want := range []string{test.want, "begun\n[0 0 false]"} {
				if i == 0 || name == "ends" {
					l.ready()
				}
				if name == "ends" { // or it might be handed the command before
					waittest.Until(t, "the shell has ended", func() bool { return len(descendants(l.cmd.Process.Pid)) == 0 })
				}
				if got := l.logIn("echo begun"); got != want {
					t.Errorf("command %d: %q, not %q", i, got, want)
				}
			}
		})
	}
}

// Looking paths up is no command: the shell that waits goes on waiting.
func TestLookingUpInAContainerPersistent(t *testing.T) {
	l := beginPersistentWith(t, compileAhead(t))
	l.ready()
	if _, answer := l.ask(control.Request{Do: control.LookUp, Paths: []string{"/nosuch/file", "/", "relative"}}); answer.Fault != "" {
		t.Errorf("%+v", answer)
	}
	if got := l.logIn(isAhead+"echo taken", func(*control.Run) {}); got != "ahead taken\n[0 0 false]" {
		t.Errorf("%q", got)
	}
}
