package e2e

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/apitypes"
	"github.com/daycare-run/sandbox/client"
)

// agentPid is a shell expression for the pid of the agent that runs the command.
const agentPid = "$(for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline | grep -q '^/.daycare/agent session' && basename $p; done)"

// What a command does to the agent is its own loss: its call fails or ends, the next one works, and
// the daemon does not grow.
func TestAttacksOnTheAgent(t *testing.T) {
	attacks := map[string]string{
		"kill":               "kill -KILL " + agentPid + "; sleep 7200",
		"terminate":          "kill -TERM " + agentPid + "; sleep 7200",
		"stop":               "kill -STOP " + agentPid,
		"kill the first":     "kill -KILL 1; sleep 7200",
		"kill everything":    "kill -KILL -1",
		"signal storm":       "for i in $(seq 200); do kill -USR1 " + agentPid + "; done; sleep 7200",
		"write to its files": "a=" + agentPid + "; for f in /proc/$a/fd/*; do head -c 1000 /dev/urandom > $f; done 2>/dev/null; sleep 7200",
		"spoil the spool":    "while :; do : > /.daycare/spool; done & head -c 300M /dev/zero; exit 1",
		"trace it":           "python3 -c 'import ctypes,sys; print(ctypes.CDLL(None).ptrace(16,int(sys.argv[1]),0,0))' " + agentPid + "; exit 1",
		"leave the tree":     "python3 -c 'import ctypes,os,time; ctypes.CDLL(None).prctl(36,0,0,0,0); os.fork() or (os.setsid(), os.fork() and os._exit(0), time.sleep(7200)); time.sleep(7200)'",
	}
	timeout := int64(1500)
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "hostile")
		l.register(t, "bystander")
		for name, command := range attacks {
			t.Run(name, func(t *testing.T) {
				l.sh(t, "bystander", "true")
				other := l.containerOf(t, "bystander").ID
				out, err := l.client.Exec(t.Context(), "hostile", apitypes.Exec{Permissions: workspace, Command: command, TimeoutMs: &timeout})
				t.Logf("the attack ended with %+v, %v", out.Result, err)
				if err == nil && !out.Failed {
					t.Error("the attack succeeded")
				}
				if got := l.sh(t, "hostile", "echo fine"); got != "fine" {
					t.Errorf("the next call: %q", got)
				}
				if left := sleeping(t, l, "hostile", "7200"); left != "" {
					t.Errorf("still running: %s", left)
				}
				if l.containerOf(t, "bystander").ID != other {
					t.Error("another user's container was touched")
				}
			})
		}
	})
}

// A command that prints without end costs the daemon no memory, whether it is read or not.
func TestFloodsDoNotGrowTheDaemon(t *testing.T) {
	timeout := int64(4000)
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "flood")
		l.sh(t, "flood", "true")
		before := residentKiB(t, l)
		out := l.run(t, "flood", apitypes.Exec{Permissions: workspace, Command: "cat /dev/zero & cat /dev/zero >&2", TimeoutMs: &timeout})
		if !out.Truncated || !out.TimedOut {
			t.Errorf("got %+v", out.Result)
		}
		stuck := make(chan struct{})
		defer close(stuck)
		first, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := l.client.Attach(t.Context(), "flood", apitypes.Exec{Permissions: workspace, Command: "cat /dev/zero", TimeoutMs: unhurried},
				client.Streams{Stdout: &stuckWriter{first: first, stuck: stuck}})
			ended <- err
		}()
		select {
		case <-first:
		case err := <-ended:
			t.Fatalf("nothing was printed: %v", err)
		}
		for range 10 {
			l.sh(t, "flood", "true") // others go on while one reader is stuck
		}
		// What Go frees it gives back a while later.
		grown := 0
		defer func() { t.Logf("the daemon has grown by %d KiB", grown) }()
		eventually(t, "the daemon has not grown by more than 64 MiB", func() bool {
			grown = residentKiB(t, l) - before
			return grown <= 64<<10
		})
	})
}

type stuckWriter struct {
	first, stuck chan struct{}
	begun        bool
}

func (w *stuckWriter) Write(p []byte) (int, error) {
	if !w.begun {
		w.begun = true
		close(w.first)
		<-w.stuck
	}
	return len(p), nil
}

func residentKiB(t *testing.T, l *lab) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", l.daemon.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(status) {
		if rest, is := strings.CutPrefix(string(line), "VmRSS:"); is {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no VmRSS")
	return 0
}
