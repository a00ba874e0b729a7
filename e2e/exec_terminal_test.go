package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// ptySession is a person at a terminal, at which the command line runs.
type ptySession struct {
	t      *testing.T
	cmd    *exec.Cmd
	near   *os.File // what the person types and sees
	far    *os.File
	screen lockedBuffer
	seen   int // bytes of the screen
	drawn  chan struct{}
}

// sit runs the command line at a terminal of a size.
func (l *lab) openPTY(t *testing.T, size pty.Winsize, args ...string) *ptySession {
	t.Helper()
	near, far, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	s := &ptySession{t: t, cmd: l.cli(args...), near: near, far: far, drawn: make(chan struct{})}
	if err := pty.Setsize(near, &size); err != nil {
		t.Fatal(err)
	}
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = far, far, far
	s.cmd.Env = append(os.Environ(), "TERM=xterm")
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.drawn)
		_, _ = io.Copy(&s.screen, near)
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		_ = far.Close()
		<-s.drawn
		_ = near.Close()
		if t.Failed() {
			t.Logf("the screen:\n%q", s.screen.tail())
		}
	})
	return s
}

func (s *ptySession) types(keys string) {
	s.t.Helper()
	if _, err := io.WriteString(s.near, keys); err != nil {
		s.t.Fatal(err)
	}
}

// sees waits for a text, after the one that was seen last.
func (s *ptySession) sees(text string) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("the screen shows %q", text), func() bool {
		at := strings.Index(s.screen.String()[s.seen:], text)
		if at >= 0 {
			s.seen += at + len(text)
		}
		return at >= 0
	})
}

// leaves waits for the end, and expects the terminal to be as it was.
func (s *ptySession) leaves(code int) {
	s.t.Helper()
	_ = s.cmd.Wait()
	if got := s.cmd.ProcessState.ExitCode(); got != code {
		s.t.Errorf("exit code %d, want %d", got, code)
	}
	mode, err := unix.IoctlGetTermios(int(s.far.Fd()), unix.TCGETS)
	if want := uint32(unix.ICANON | unix.ECHO | unix.ISIG); err != nil || mode.Lflag&want != want || mode.Oflag&unix.OPOST == 0 {
		s.t.Errorf("the terminal was left with %+v, %v", mode, err)
	}
}

// A shell at a terminal is as a local one: its size, its keys, its jobs, and the programs that draw.
func TestTerminal(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "tty")
		s := l.openPTY(t, pty.Winsize{Rows: 33, Cols: 101}, "exec", "-it", "--grant", "@workspace", "-u", "tty")
		s.types("PS1='ready> '; echo $TERM; stty size; test -t 0 -a -t 1 -a -t 2 && echo at $(tty)\r")
		s.sees("xterm\r\n33 101\r\nat /dev/pts/")

		// It is the command's own, also by its name.
		s.types("test -O $(tty) && : <> $(tty) && echo op$((0))ened\r")
		s.sees("op0ened\r\n")

		if err := pty.Setsize(s.near, &pty.Winsize{Rows: 40, Cols: 120}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the shell knows the new size", func() bool {
			s.types("stty size | sed 's/$/ now/'\r")
			s.sees(" now\r\n")
			return strings.HasSuffix(s.screen.String()[:s.seen], "\r40 120 now\r\n")
		})

		s.types("sleep 7610\r")
		eventually(t, "it sleeps", func() bool { return sleeping(t, l, "tty", "7610") != "" })
		s.types("\x03")
		s.types("echo code $?\r")
		s.sees("code 130\r\n")

		s.types("sleep 7611\r")
		eventually(t, "it sleeps", func() bool { return sleeping(t, l, "tty", "7611") != "" })
		s.types("\x1a")
		s.sees("Stopped")
		s.types("bg\r")
		s.sees("sleep 7611 &")
		s.types("jobs\r")
		s.sees("Running")
		s.types("kill %1; wait; echo gone\r")
		s.sees("gone\r\n")

		s.types("vim /tmp/note\r")
		s.sees("~") // the lines that there are not
		s.types("ihello\x1b:wq\r")
		s.sees("written")
		s.sees("ready> ")
		s.types("echo $(wc -c </tmp/note) bytes\r")
		s.sees("6 bytes\r\n")

		s.types("top\r")
		s.sees("PID")
		s.types("q")
		s.sees("ready> ")
		s.types("seq 1000 | less; echo left less\r")
		s.sees("\r\n38\r\n") // as much as fits
		s.types("G")
		s.sees("1000")
		s.types("q")
		s.sees("left less\r\n")

		s.types("nano /tmp/note\r")
		s.sees("GNU nano")
		s.types("\x18") // Ctrl-X
		s.sees("ready> ")
		s.types("exit 7\r")
		s.leaves(7)
		if screen := s.screen.String(); strings.Contains(screen, "job control") {
			t.Errorf("the shell complains: %.500q", screen)
		}
	})
}

// What was started at a terminal ends with the command, all that was printed arrives, and a time is up.
func TestTerminalCommandsEndWhole(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "ttyend")
		size := pty.Winsize{Rows: 24, Cols: 80}
		s := l.openPTY(t, size, "exec", "-t", "--grant", "@workspace", "-u", "ttyend", "--", "setsid sleep 7612 & seq 20000; exit 3")
		s.leaves(3)
		s.sees("\r\n20000\r\n")                                      // a pty hands on what was written to it a moment later
		printed, _, _ := strings.Cut(s.screen.String(), "sandbox: ") // what comes then is about the sleep that was ended
		if lines := len(strings.Fields(printed)); lines != 20000 {
			t.Errorf("%d lines arrived", lines)
		}
		if left := sleeping(t, l, "ttyend", "7612"); left != "" {
			t.Errorf("left: %s", left)
		}

		s = l.openPTY(t, size, "exec", "-it", "--grant", "@workspace", "-u", "ttyend", "--timeout", "500ms", "--", "trap '' TERM HUP; sleep 7613")
		s.leaves(124)
		s.sees("sandbox: the command timed out")
		if left := sleeping(t, l, "ttyend", "7613"); left != "" {
			t.Errorf("left: %s", left)
		}

		s = l.openPTY(t, size, "exec", "-it", "--grant", "@workspace", "-u", "ttyend", "--", "echo ready; sleep 7614")
		s.sees("ready")
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		s.leaves(143)

		// Keys that the command does not get make signals here.
		s = l.openPTY(t, size, "exec", "-t", "--grant", "@workspace", "-u", "ttyend", "--", "echo ready; sleep 7615")
		s.sees("ready")
		s.types("\x03")
		s.leaves(130)
		if left := sleeping(t, l, "ttyend", "7615"); left != "" {
			t.Errorf("left: %s", left)
		}
	})
}

// A terminal needs no person: its input may come from a program, and end.
func TestInputOfATerminalEnds(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "ttyeof")
		var out bytes.Buffer
		result, err := l.client.Attach(context.Background(), "ttyeof",
			types.Exec{Command: "exec >/dev/null 2>&1 </dev/null; exec cat </dev/tty >/dev/tty", TTY: client.Size{Rows: 5, Cols: 6}.Terminal()},
			client.Streams{Stdin: strings.NewReader("hello\n"), Stdout: &out})
		if err != nil || result.Failed || out.String() != "hello\r\nhello\r\n" {
			t.Errorf("%q, %+v, %v", out.String(), result, err)
		}
	})
}

func TestTerminalWithoutOne(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		cmd := l.cli("exec", "-it", "-u", "tty", "--", "true")
		cmd.Stdin = strings.NewReader("")
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 125 || !strings.Contains(string(out), "-t needs a terminal on stdin") {
			t.Errorf("got %d %s", code, out)
		}
	})
}

// A shell whose terminal is closed goes on, if that was asked for, and another terminal takes it.
func TestTerminalThatIsClosed(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		s := l.openPTY(t, pty.Winsize{Rows: 24, Cols: 80}, "exec", "-it", "-u", "closed", "--detach-on-disconnect")
		s.sees("sandbox attach --user closed ")
		s.types("PS1='ready> '; x=$((40 + 2)); echo is $x\r")
		s.sees("is 42\r\n")
		id, _, _ := strings.Cut(strings.SplitAfter(s.screen.String(), "--user closed ")[1], "\r")
		_ = s.cmd.Process.Signal(syscall.SIGHUP) // what a terminal that is closed sends
		s.leaves(129)

		s = l.openPTY(t, pty.Winsize{Rows: 30, Cols: 100}, "attach", "-u", "closed", id)
		s.sees("is 42\r\n") // as it was left
		s.types("echo still $x\r")
		s.sees("still 42\r\n")
		eventually(t, "the shell knows the size", func() bool {
			s.types("stty size | sed 's/$/ now/'\r")
			s.sees(" now\r\n")
			return strings.HasSuffix(s.screen.String()[:s.seen], "\r30 100 now\r\n")
		})
		s.types("exit 4\r")
		s.leaves(4)
	})
}
