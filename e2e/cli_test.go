package e2e

import (
	"bytes"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func (l *lab) cli(args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(binaries, "sandbox"), append([]string{"--socket", l.path("sandboxd.sock")}, args...)...)
}

func TestCommandLine(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		for _, c := range []struct {
			name           string
			args           []string
			stdin          string
			stdout, stderr string
			code           int
		}{
			{name: "the main job", args: []string{"exec", "--user", "cli", "--", `python3 -c "print(6*7)"`}, stdout: "42\n"},
			{name: "its exit code", args: []string{"exec", "-u", "cli", "--", "echo out; echo err >&2; exit 42"}, stdout: "out\n", stderr: "err\n", code: 42},
			{name: "several arguments need no shell", args: []string{"exec", "-u", "cli", "--", "printf", "%s,", "a b", "$x"}, stdout: "a b,$x,"},
			{name: "a signal", args: []string{"exec", "-u", "cli", "--", "kill -TERM $$"}, code: 143},
			{name: "time is up", args: []string{"exec", "-u", "cli", "--timeout", "300ms", "--", "sleep 7500"}, stderr: "sandbox: the command timed out after", code: 124},
			{name: "environment", args: []string{"exec", "-u", "cli", "--env", "A=b c", "--", "echo $A"}, stdout: "b c\n"},
			{name: "cwd", args: []string{"exec", "-u", "cli", "-C", "/home", "--", "pwd"}, stdout: "/home\n"},
			{name: "no stdin unless asked for", args: []string{"exec", "-u", "cli", "--", "wc -c"}, stdin: "lost", stdout: "0\n"},
			{name: "stdin", args: []string{"exec", "-u", "cli", "-i", "--", "wc -c"}, stdin: strings.Repeat("x", 1<<20), stdout: "1048576\n"},
			{name: "login", args: []string{"exec", "-u", "cli", "--login", "--", "shopt -q login_shell && echo yes"}, stdout: "yes\n"},
			{name: "refusal", args: []string{"exec", "-u", "Cli", "--", "true"}, stderr: "sandbox: userId \"Cli\" has upper-case letters", code: 125},
			{name: "unknown flag", args: []string{"exec", "-u", "cli", "--nope", "--", "true"}, stderr: "unknown flag: --nope", code: 125},
			{name: "nothing to run", args: []string{"exec", "-u", "cli"}, stderr: "requires at least 1 arg", code: 125},
			{name: "ps", args: []string{"ps"}, stdout: "daycare-sandbox-cli-"},
			{name: "health", args: []string{"health"}, stdout: "status:  ok"},
			{name: "version", args: []string{"version"}, stdout: "sandboxd:"},
		} {
			t.Run(c.name, func(t *testing.T) {
				cmd := l.cli(c.args...)
				var stdout, stderr bytes.Buffer
				cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(c.stdin), &stdout, &stderr
				err := cmd.Run()
				if code := cmd.ProcessState.ExitCode(); code != c.code {
					t.Errorf("exit code %d, want %d (%v, %s)", code, c.code, err, stderr.String())
				}
				if !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
					t.Errorf("stdout %q stderr %q, want %q and %q", stdout.String(), stderr.String(), c.stdout, c.stderr)
				}
			})
		}
	})
}

// Ctrl-C reaches the command, whose answer to it is what counts; output comes as it is printed.
func TestInterruptReachesTheCommand(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		cmd := l.cli("exec", "-u", "interrupt", "--", "trap 'echo interrupted; exit 9' INT; sleep 7502 & echo ready; wait")
		interrupt(t, cmd)
	})
}

// interrupt sends SIGINT to a command that prints "ready", and then, at the signal, "interrupted" before it exits with 9.
func interrupt(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(stdout, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(stdout)
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 9 || string(rest) != "interrupted\n" {
		t.Errorf("got %q, %v", rest, err)
	}
}

// A command without -i and -t is one request: its output comes as it is printed, Ctrl-C ends it, and no WebSocket is opened.
func TestCommandLineNeedsNoWebSocket(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		cmd := l.cli("exec", "-u", "plain", "--", "echo out; echo err >&2; sleep 7503")
		stdout, outErr := cmd.StdoutPipe()
		stderr, errErr := cmd.StderrPipe()
		if err := errors.Join(outErr, errErr, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		for text, from := range map[string]io.Reader{"out\n": stdout, "err\n": stderr} {
			printed := make([]byte, len(text))
			if _, err := io.ReadFull(from, printed); err != nil || string(printed) != text {
				t.Fatalf("%q, %v", printed, err)
			}
		}
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		rest, _ := io.ReadAll(io.MultiReader(stdout, stderr))
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 130 || len(rest) > 0 {
			t.Errorf("exit code %d, and %q", code, rest)
		}
		called := func(route string) bool { return l.logged(`"route":"`+route+`"`, `"sandbox":"cli-plain"`) != "" }
		eventually(t, "the log has the exec and the signal", func() bool {
			return called("POST /v1/sandboxes/{id}/exec") && called("POST /v1/sandboxes/{id}/execs/{execId}/signal")
		})
		if called("GET /v1/sandboxes/{id}/exec") {
			t.Errorf("there was a WebSocket; the log:\n%s", l.log.tail())
		}
		typed := l.cli("exec", "-u", "plain", "-i", "--", "cat")
		typed.Stdin = strings.NewReader("typed")
		if out, err := typed.CombinedOutput(); err != nil || string(out) != "typed" {
			t.Errorf("%v: %s", err, out)
		}
		eventually(t, "the log has the WebSocket of an exec with -i", func() bool { return called("GET /v1/sandboxes/{id}/exec") })
	})
}

// The third Ctrl-C ends a command that will not hear, and nothing of it is left.
func TestThirdInterruptCutsTheConnection(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "deaf")
		cmd := l.cli("exec", "-u", "deaf", "--grant", "@workspace", "--", "trap '' INT; echo ready; while :; do sleep 7501; done")
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(stdout, make([]byte, len("ready\n"))); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it runs where we look", func() bool { return sleeping(t, l, "deaf", "7501") != "" })
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		for done := false; !done; {
			_ = cmd.Process.Signal(syscall.SIGINT)
			select {
			case <-ended:
				done = true
			default:
			}
		}
		if code := cmd.ProcessState.ExitCode(); code != 130 {
			t.Errorf("exit code %d", code)
		}
		eventually(t, "nothing is left", func() bool { return sleeping(t, l, "deaf", "7501") == "" })
	})
}

func TestNoServiceToTalkTo(t *testing.T) {
	begin(t)
	cmd := exec.Command(filepath.Join(binaries, "sandbox"), "--socket", filepath.Join(t.TempDir(), "none.sock"), "exec", "-u", "x", "--", "true")
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 125 || !strings.Contains(string(out), "is sandboxd running?") {
		t.Errorf("got %d %s", code, out)
	}
}
