package e2e

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// A marker is a duration that only one scenario sleeps, so that its processes can be told.
func sleeping(t *testing.T, l *lab, user, marker string) string {
	t.Helper()
	return l.sh(t, user, "ps -eo args | grep '^sleep "+marker+"' || true")
}

func TestNothingOutlivesACommand(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "leftover")
		for name, command := range map[string]string{
			"background":          "sleep 7001 &",
			"new session":         "setsid sleep 7001 & sleep 0.1",
			"double fork":         "(setsid sh -c 'sleep 7001 & sleep 7001' >/dev/null 2>&1 &) ; sleep 0.1",
			"ignores termination": "(trap '' TERM HUP INT; setsid sleep 7001 &) ; sleep 0.1",
			"daemon of a daemon":  `python3 -c "import os,time` + "\n" + `for i in range(3):` + "\n" + ` if os.fork(): os._exit(0)` + "\n" + ` os.setsid()` + "\n" + `os.execvp('sleep',['sleep','7001'])"; sleep 0.1`,
		} {
			t.Run(name, func(t *testing.T) {
				l.sh(t, "leftover", command)
				if left := sleeping(t, l, "leftover", "7001"); left != "" {
					t.Errorf("still running: %s", left)
				}
			})
		}
		for name, program := range map[string]string{
			"the agent's child": "import ctypes, os\nif ctypes.CDLL(None).syscall(56 if os.uname().machine == 'x86_64' else 220, 0x8000 | 17, 0, 0, 0, 0) == 0: os.execvp('sleep', ['sleep', '7001'])",
			"traced by the agent": "import ctypes, os, signal\nif os.fork() == 0: os.execvp('sleep', ['sleep', '7001'])\n" +
				"ctypes.CDLL(None).ptrace(0, 0, 0, 0)\nos.kill(os.getpid(), signal.SIGUSR1)",
		} {
			t.Run(name, func(t *testing.T) {
				l.run(t, "leftover", types.Exec{Argv: []string{"python3", "-c", program}})
				if left := sleeping(t, l, "leftover", "7001"); left != "" {
					t.Errorf("still running: %s", left)
				}
			})
		}
	})
}

// What was written into a pipe before the shell's end arrives, in the output and in files. What sleeps is ended and told.
func TestDrainingOutputArrives(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "drains")
		for range 20 {
			for command, want := range map[string]string{
				"echo a > >(cat)": "a\n",
				"exec > >(tee /tmp/log) 2>&1; seq 9; exit 3": "1\n2\n3\n4\n5\n6\n7\n8\n9\n",
			} {
				if out := l.run(t, "drains", types.Exec{Permissions: workspace, Command: command}); out.Stdout != want {
					t.Errorf("%s: %q, %+v", command, out.Stdout, out.Result)
				}
			}
		}
		l.sh(t, "drains", "seq 200000 > >(gzip > /tmp/f.gz)")
		if got := l.sh(t, "drains", "gunzip < /tmp/f.gz | tail -1; tail -1 /tmp/log"); got != "200000\n9" {
			t.Errorf("the files end with %q", got)
		}
		var out types.Output
		eventually(t, "there was time to read both command lines", func() bool {
			out = l.run(t, "drains", types.Exec{Permissions: workspace, Command: "nohup sleep 7010 >/dev/null 2>&1 & setsid sleep 7010 & until [ $(pgrep -fxc 'sleep 7010') = 2 ]; do sleep 0.1; done"})
			return len(out.Hints) != 1 || len(out.Hints[0].Commands) == out.Hints[0].Count
		})
		if h := out.Hints; len(h) != 1 || h[0].Kind != types.HintLeftovers || h[0].Count != 2 || !slices.Equal(h[0].Commands, []string{"sleep 7010", "sleep 7010"}) ||
			!strings.HasPrefix(h[0].Message, "2 background processes were ended: sleep 7010, sleep 7010; ") {
			t.Errorf("the hints are %+v", h)
		}
	})
}

// A daemon belongs to the command that started it, whatever else ends meanwhile.
func TestACommandsDaemonsLiveAsLongAsIt(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "daemons")
		stdin, write := io.Pipe()
		stdout, printed := io.Pipe()
		done := make(chan error, 1)
		go func() {
			_, err := l.client.Attach(context.Background(), "daemons",
				types.Exec{Permissions: workspace, TimeoutMs: unhurried, Command: "(setsid sleep 7002 >/dev/null 2>&1 &); until pgrep -fx 'sleep 7002' > /dev/null; do sleep 0.1; done; echo ready; read line"},
				client.Streams{Stdin: stdin, Stdout: printed})
			done <- err
		}()
		if _, err := io.ReadFull(stdout, make([]byte, len("ready\n"))); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			l.sh(t, "daemons", "sleep 7003 & true")
		}
		if sleeping(t, l, "daemons", "7002") == "" {
			t.Error("another command's end has ended this one's daemon")
		}
		_ = write.Close()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if left := sleeping(t, l, "daemons", "7002"); left != "" {
			t.Errorf("the daemon has outlived its command: %s", left)
		}
	})
}

// A command with many threads, as Go's, Node's and Java's have, is one process like any other.
func TestThreadsAreNotLeftovers(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "threads")
		stdin, write := io.Pipe()
		stdout, printed := io.Pipe()
		done := make(chan error, 1)
		var result types.Result
		go func() {
			var err error
			result, err = l.client.Attach(context.Background(), "threads", types.Exec{Permissions: workspace, TimeoutMs: unhurried, Argv: []string{"python3", "-c", `
import sys, threading, time
for i in range(4): threading.Thread(target=time.sleep, args=(7008,), daemon=True).start()
print("ready", flush=True)
sys.stdin.readline()
`}}, client.Streams{Stdin: stdin, Stdout: printed})
			done <- err
		}()
		if _, err := io.ReadFull(stdout, make([]byte, len("ready\n"))); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			l.sh(t, "threads", "sleep 7009 & true")
		}
		_ = write.Close()
		if err := <-done; err != nil || result.Failed {
			t.Errorf("got %+v, %v", result, err)
		}
	})
}

func TestTimeoutEndsTheWholeTree(t *testing.T) {
	timeout := int64(700)
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "timeout")
		for name, command := range map[string]string{
			"plain":               "sleep 7004",
			"new session":         "setsid -w sleep 7004",
			"double fork":         "(setsid sh -c 'sleep 7004 & sleep 7004' &) ; sleep 7004",
			"ignores termination": "trap '' TERM; (trap '' TERM; setsid sleep 7004 &); while :; do sleep 7004; done",
		} {
			t.Run(name, func(t *testing.T) {
				out := l.run(t, "timeout", types.Exec{Permissions: workspace, Command: command, TimeoutMs: &timeout})
				if !out.TimedOut || !out.Failed {
					t.Errorf("got %+v", out.Result)
				}
				if left := sleeping(t, l, "timeout", "7004"); left != "" {
					t.Errorf("still running: %s", left)
				}
			})
		}
		t.Run("only what was left", func(t *testing.T) {
			timeout := int64(1900) // less than what is left may take
			var out types.Output
			eventually(t, "the command itself is over in time", func() bool {
				out = l.run(t, "timeout", types.Exec{Permissions: workspace, Command: "while :; do :; done & echo over", TimeoutMs: &timeout})
				return !out.TimedOut
			})
			if out.Stdout != "over\n" || out.TimedOut || out.Failed || len(out.Hints) != 1 || out.Hints[0].Kind != types.HintLeftovers {
				t.Errorf("got %q %+v, %+v", out.Stdout, out.Result, out.Hints)
			}
		})
		t.Run("has time to clean up", func(t *testing.T) {
			timeout := int64(5000) // it has to have begun by then
			var out types.Output
			eventually(t, "the grace is enough for a busy machine", func() bool {
				out = l.run(t, "timeout", types.Exec{Permissions: workspace, Command: "trap 'echo cleaned; exit 3' TERM; echo begun; sleep 7004 & wait", TimeoutMs: &timeout})
				return strings.Contains(out.Stdout, "cleaned")
			})
			if out.Stdout != "begun\ncleaned\n" || !out.TimedOut || out.ExitCode == nil || *out.ExitCode != 3 {
				t.Errorf("got %q %+v", out.Stdout, out.Result)
			}
		})
	})
}

func TestACancelledCallEndsTheTree(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "cancel")
		l.sh(t, "cancel", "true")
		command := types.Exec{Permissions: workspace, Command: "(setsid sleep 7005 &); echo begun; sleep 7005"}
		calls := map[string]func(ctx context.Context, begun chan<- struct{}) error{
			"buffered": func(ctx context.Context, begun chan<- struct{}) error {
				close(begun)
				_, err := l.client.Exec(ctx, "cancel", command)
				return err
			},
			"attached": func(ctx context.Context, begun chan<- struct{}) error {
				_, err := l.client.Attach(ctx, "cancel", command, client.Streams{Stdout: onWrite(func() { close(begun) })})
				return err
			},
		}
		for name, call := range calls {
			t.Run(name, func(t *testing.T) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				begun, ended := make(chan struct{}), make(chan error, 1)
				go func() { ended <- call(ctx, begun) }()
				<-begun
				eventually(t, "the command runs", func() bool { return strings.Count(sleeping(t, l, "cancel", "7005"), "sleep") == 2 })
				cancel()
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Errorf("the call ended with %v", err)
				}
				eventually(t, "nothing of the call runs", func() bool { return sleeping(t, l, "cancel", "7005") == "" })
			})
		}
	})
}

type onWrite func()

func (f onWrite) Write(p []byte) (int, error) { f(); return len(p), nil }

// signalled says "ready" when it and its child wait for a signal, and then what has come to each. It is
// no shell, because that forgets a signal which comes just when a child of its ends.
const signalled = `
import os, signal, time
def told(name, code):
    def handler(*_):
        if name == "parent":
            os.wait()
        os.write(1, name.encode() + b"\n")
        os._exit(code)
    signal.signal(signal.SIGINT, handler)
r, w = os.pipe()
if os.fork() == 0:
    told("child", 0)
    os.write(w, b"x")
else:
    told("parent", 7)
    os.read(r, 1)
    os.write(1, b"ready\n")
while True:
    time.sleep(60)
`

// A signal goes to the command and its children while it runs, also when its stdin is stuck.
func TestSignals(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "signals")
		signals := make(chan string, 1)
		var result types.Result
		output, printed := io.Pipe()
		done := make(chan error, 1)
		go func() {
			var err error
			result, err = l.client.Attach(context.Background(), "signals",
				types.Exec{Permissions: workspace, Argv: []string{"python3", "-c", signalled}},
				client.Streams{Stdin: endless{}, Stdout: printed, Signals: signals})
			_ = printed.Close()
			done <- err
		}()
		if _, err := io.ReadFull(output, make([]byte, len("ready\n"))); err != nil {
			t.Fatal(err)
		}
		signals <- "INT"
		rest, err := io.ReadAll(output)
		if err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if string(rest) != "child\nparent\n" || result.ExitCode == nil || *result.ExitCode != 7 {
			t.Errorf("got %q %+v", rest, result)
		}
	})
}

// endless is a stdin that always has more.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// Many commands at once do not disturb each other.
func TestManyCommandsAtOnce(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "many")
		l.sh(t, "many", "true")
		failures := make(chan error, 64)
		for i := range 64 {
			go func() {
				want := strings.Repeat("x", i)
				out, err := l.client.Exec(context.Background(), "many", types.Exec{Permissions: workspace, Command: "(setsid sleep 7006 &); printf %s " + want})
				if err == nil && out.Stdout != want {
					err = errors.New("got " + out.Stdout)
				}
				failures <- err
			}()
		}
		for range 64 {
			if err := <-failures; err != nil {
				t.Error(err)
			}
		}
		if left := sleeping(t, l, "many", "7006"); left != "" {
			t.Errorf("still running: %s", left)
		}
	})
}

// The time that a call may take includes what it left behind.
func TestAForkBombEndsWithItsCommand(t *testing.T) {
	timeout := int64(1500)
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "bomb")
		begun := time.Now()
		_, err := l.client.Exec(context.Background(), "bomb", types.Exec{
			Permissions: workspace,
			Command:     "f() { (setsid sleep 7007 &) ; f & f & }; f; wait", TimeoutMs: &timeout,
		})
		t.Logf("ended after %v with %v", time.Since(begun), err)
		if err != nil && !strings.Contains(err.Error(), "the container was lost") {
			t.Error(err)
		}
		if left := sleeping(t, l, "bomb", "7007"); left != "" {
			t.Errorf("still running: %.300s", left)
		}
		// Where the container was lost, that looks into another one.
		eventually(t, "there is no other container", func() bool { return len(l.containersOf(t, "bomb")) == 1 })
	}, "SANDBOXD_LIMITS_PIDS=300")
}
