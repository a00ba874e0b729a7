//go:build linux

package agent

import (
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/launch"
)

// longLine is a command line with a heredoc, which Linux does not take as an argument.
var longLine = "wc -c <<'EOF'\n" + strings.Repeat("$x`y`\\'\"", 300<<10/8) + "\nEOF\necho $0 $#; test -e /proc/self/fd/3 && echo open; exit 7"

const longLineSays = "307201\nbash 0\n"

// A command line runs whatever its length, in a shell that waits as in a new one.
func TestLongCommandLines(t *testing.T) {
	agents := startBoth(t)
	for _, ahead := range []bool{false, true} {
		session := agents.plain
		if ahead {
			session = agents.ahead
		}
		for _, login := range []bool{false, true} {
			start := bash(longLine)
			start.Login = login
			got, err := exchange(session, start, "")
			if err != nil || got.Stdout != longLineSays || got.Stderr != "" || got.Exit.Code != 7 || got.Exit.Ahead != ahead {
				t.Errorf("ahead %v, login %v: %.300q, %.300q, %+v, %v", ahead, login, got.Stdout, got.Stderr, got.Exit, err)
			}
		}
	}
	start := bash(longLine)
	start.Terminal = true
	if got, err := exchange(agents.plain, start, ""); err != nil || got.Stdout != strings.ReplaceAll(longLineSays, "\n", "\r\n") || got.Exit.Code != 7 {
		t.Errorf("at a terminal: %.300q, %+v, %v", got.Stdout, got.Exit, err)
	}
	start = bash("")
	start.Shell, start.Args = "", []string{"/bin/bash", "-l", "-c", longLine}
	if got, err := exchange(agents.plain, start, ""); err != nil || got.Stdout != strings.Replace(longLineSays, "bash", "/bin/bash", 1) {
		t.Errorf("as arguments: %.300q, %+v, %v", got.Stdout, got.Exit, err)
	}
	// What cannot be read does not look as if it had run.
	start = bash(longLine)
	start.Env = []string{"PATH=/nowhere"}
	start.Args, start.Shell = []string{"/bin/sh", "-c", "/bin/true" + longLine}, ""
	if got, err := exchange(agents.plain, start, ""); err != nil || got.Exit.Code == 0 {
		t.Errorf("without a PATH: %.300q, %+v, %v", got.Stdout, got.Exit, err)
	}
}

func TestLongCommandLineOfAProcess(t *testing.T) {
	p, code, _ := run(t, t.TempDir(), shell(longLine))
	if code != 7 || p.log() != longLineSays {
		t.Errorf("it ended with %d and logged %.300q", code, p.log())
	}
}

func TestLongCommandLineInAPersistentContainer(t *testing.T) {
	l := beginPersistent(t)
	stream, _ := l.start("", func(r *control.Request) {
		r.Run.Args, r.Run.Env = []string{"/bin/bash", "-l", "-c", longLine}, append(r.Run.Env, "HOME=/nowhere")
	})
	if got, want := rest(t, stream), strings.Replace(longLineSays, "bash", "/bin/bash", 1)+"[7 0 false]"; got != want {
		t.Errorf("%.300q, want %q", got, want)
	}
}

func TestIsLine(t *testing.T) {
	for args, want := range map[string]bool{
		"bash -c TEXT": true, "/bin/bash -l -c TEXT": true, "sh -lc -- TEXT": true, "/usr/bin/bash -c -- TEXT": true,
		"bash TEXT": false, "bash -l TEXT": false, "bash -c": false, "bash -c TEXT more": false, "python3 -c TEXT": false,
		"bash -x TEXT": false, "TEXT": false,
	} {
		if got := launch.IsLine(strings.Fields(args)); got != want {
			t.Errorf("%s: %v", args, got)
		}
	}
}
