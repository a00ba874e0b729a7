package e2e

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// whatStdinIs prints what the command's stdin is. A program that finds a pipe there may search that instead of files.
const whatStdinIs = "readlink /proc/self/fd/0"

// At every door a command without input reads /dev/null. A door is told by what it prints.
func TestNoInputIsDevNull(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		const user = "noinput"
		l.register(t, user)
		mkdir(t, l.home(user))
		a := l.agent(t, "--user", user)
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		attached := func(e types.Exec) string {
			var out bytes.Buffer
			e.Command = whatStdinIs + "; read -r line; echo ended"
			if _, err := l.client.Attach(t.Context(), user, e, client.Streams{Stdout: &out}); err != nil {
				return err.Error()
			}
			text, ended := strings.CutSuffix(strings.TrimSpace(out.String()), "ended")
			if !ended {
				return "not at its end: " + text
			}
			return strings.ReplaceAll(text, "\r", "")
		}
		cli := func(args ...string) string {
			cmd := l.cli(args...)
			cmd.Stdin = null
			out, fault, _ := ends(t, cmd)
			return out + fault
		}
		size := client.Size{Rows: 5, Cols: 80}.Terminal()
		for door, ask := range map[string]func() string{
			"exec":                       func() string { return l.run(t, user, types.Exec{Command: whatStdinIs}).Stdout },
			"exec of a program":          func() string { return l.run(t, user, types.Exec{Argv: strings.Fields(whatStdinIs)}).Stdout },
			"exec with an empty stdin":   func() string { return l.emptyStdin(t, user) },
			"attached exec":              func() string { return attached(types.Exec{}) },
			"attached, at a terminal":    func() string { return attached(types.Exec{TTY: size}) },
			"attached, goes on":          func() string { return attached(types.Exec{DetachOnDisconnect: true}) },
			"attached, both":             func() string { return attached(types.Exec{TTY: size, DetachOnDisconnect: true}) },
			"sandbox exec":               func() string { return cli("exec", "-u", user, "--", whatStdinIs) },
			"sandbox exec -i </dev/null": func() string { return cli("exec", "-i", "-u", user, "--", whatStdinIs) },
			"sandbox --settings": func() string {
				cmd := l.wrapped(t, l.home(user), `{"filesystem": {"denyRead": [], "allowWrite": [], "denyWrite": []}, "network": {"allowedDomains": [], "deniedDomains": []}}`, "--", whatStdinIs)
				near, far, err := pty.Open()
				if err != nil {
					t.Fatal(err)
				}
				defer near.Close()
				defer far.Close()
				cmd.Stdin = far // where nobody types
				out, fault, _ := ends(t, cmd)
				return out + fault
			},
			"MCP's exec": func() string {
				text, _ := a.call(t, "exec", anything{"command": whatStdinIs}, nil)
				return text
			},
			"process": func() string { return l.logOf(t, user, types.StartProcess{Command: whatStdinIs + "; exec sleep 7571"}) },
			"ready command": func() string {
				return l.logOf(t, user, types.StartProcess{
					Command: "until [ -e /tmp/ready-stdin ]; do sleep 0.1; done; cat /tmp/ready-stdin; exec sleep 7572",
					Ready:   &types.Ready{Command: whatStdinIs + " >/tmp/ready-stdin.new; mv /tmp/ready-stdin.new /tmp/ready-stdin"},
				})
			},
		} {
			t.Run(door, func(t *testing.T) {
				if got := strings.TrimSpace(ask()); got != "/dev/null" {
					t.Errorf("stdin is %q", got)
				}
			})
		}
		// A terminal for output alone is still the controlling one: its keys for signals reach the command.
		s := l.openPTY(t, pty.Winsize{Rows: 5, Cols: 80}, "exec", "-t", "-u", user, "--", whatStdinIs+"; tty <&1; echo now; exec sleep 7573")
		s.sees("/dev/null")
		s.sees("/dev/pts/")
		s.sees("now") // a shell that still waits for tty, which has ended well, goes on after the key
		s.types("\x03")
		s.leaves(130)
	})
}

// emptyStdin asks what an empty stdin that was given is.
func (l *lab) emptyStdin(t *testing.T, user string) string {
	t.Helper()
	response := post(t, l, "/v1/sandboxes/"+user+"/exec", `{"command":"`+whatStdinIs+`","stdin":""}`, "application/json")
	defer response.Body.Close()
	var out bytes.Buffer
	if _, err := out.ReadFrom(response.Body); err != nil {
		t.Fatal(err)
	}
	stdout, _, _ := strings.Cut(strings.TrimPrefix(out.String(), `{"stdout":"`), `\n"`)
	return stdout
}

// logOf starts a process, returns the first line of its log, and removes it.
func (l *lab) logOf(t *testing.T, user string, p types.StartProcess) string {
	t.Helper()
	started, err := l.client.StartProcess(t.Context(), user, p)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.client.RemoveProcess(context.Background(), user, started.ID); err != nil {
			t.Error(err)
		}
	}()
	var data string
	eventually(t, "its log has a line", func() bool {
		log, err := l.client.ProcessLog(t.Context(), user, started.ID, client.LogQuery{})
		data = log.Data
		return err == nil && strings.Contains(data, "\n")
	})
	return data
}
