package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// agentPid is a shell expression for the pid of the agent that runs the command.
const agentPid = "$(for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline | grep -q '^/.daycare/agent session' && basename $p; done)"

// What a command does to the agent has no effect: the call ends as any other, and the next one has the same container.
func TestAttacksOnTheAgent(t *testing.T) {
	attacks := map[string]string{
		"kill":               "kill -KILL " + agentPid + "; sleep 7200",
		"terminate":          "kill -TERM " + agentPid + "; sleep 7200",
		"stop":               "kill -STOP " + agentPid,
		"kill the first":     "kill -KILL 1; sleep 7200",
		"stop the first":     "kill -STOP 1; sleep 7200",
		"lock the spool":     "flock /.daycare/spool sleep 7200",
		"kill everything":    "kill -KILL -1; sleep 7200",
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
				l.sh(t, "hostile", "true")
				own, other := l.containerOf(t, "hostile").ID, l.containerOf(t, "bystander").ID
				out, err := l.client.Exec(t.Context(), "hostile", types.Exec{Permissions: workspace, Command: command, TimeoutMs: &timeout})
				if err != nil || !out.Failed {
					t.Errorf("the attack ended with %+v, %v", out.Result, err)
				}
				if got := l.sh(t, "hostile", "echo fine"); got != "fine" {
					t.Errorf("the next call: %q", got)
				}
				if left := sleeping(t, l, "hostile", "7200"); left != "" {
					t.Errorf("still running: %s", left)
				}
				if l.containerOf(t, "hostile").ID != own || l.containerOf(t, "bystander").ID != other {
					t.Error("a container was replaced")
				}
			})
		}
	})
}

// storm sends every signal, for ever, to all that it may: also to a command that is being started, while that has the
// agent's memory.
const storm = `
import os, signal
for s in set(range(1, 65)) - {9, 17, 19, 32, 33}: signal.signal(s, signal.SIG_IGN)
open('/home/begun', 'w').close()
while True:
    for s in SIGNALS:
        try: os.kill(-1, s)
        except OSError: pass
`

func TestSignalsToWhatIsBeingStarted(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		for name, signals := range map[string]string{
			"stop": "[19]", "handled": "[s for s in range(1, 65) if s not in (9, 17, 18, 19, 20, 21, 22, 32, 33)]",
		} {
			t.Run(name, func(t *testing.T) { l.weather(t, "storm-"+name, strings.ReplaceAll(storm, "SIGNALS", signals)) })
		}
	})
}

// weather starts commands beside a storm, which may end or stop them, and sees that their agent goes on.
func (l *lab) weather(t *testing.T, user, program string) {
	t.Helper()
	l.register(t, user)
	l.sh(t, user, "true")
	own := l.containerOf(t, user).ID
	ctx, end := context.WithCancel(t.Context())
	defer end()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = l.client.Exec(ctx, user, types.Exec{Permissions: workspace, TimeoutMs: unhurried, Argv: []string{"python3", "-c", program}})
	}()
	eventually(t, "it has begun", func() bool { _, err := os.Stat(l.at(user, "begun")); return err == nil })
	timeout := int64(500)
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			_, _ = l.client.Exec(t.Context(), user, types.Exec{Permissions: workspace, TimeoutMs: &timeout, Argv: []string{"true"}})
		})
	}
	calls.Wait()
	end()
	<-ended
	eventually(t, "the storm is over", func() bool {
		return l.run(t, user, types.Exec{Command: "echo fine", TimeoutMs: &timeout}).Stdout == "fine\n"
	})
	if l.containerOf(t, user).ID != own {
		t.Error("the container was replaced")
	}
}

// A command that prints without end costs the daemon no memory, whether it is read or not.
func TestFloodsDoNotGrowTheDaemon(t *testing.T) {
	timeout := int64(4000)
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "flood")
		l.sh(t, "flood", "true")
		before := residentKiB(t, l)
		out := l.run(t, "flood", types.Exec{Permissions: workspace, Command: "cat /dev/zero & cat /dev/zero >&2", TimeoutMs: &timeout})
		if !out.Truncated || !out.TimedOut {
			t.Errorf("got %+v", out.Result)
		}
		stuck := make(chan struct{})
		defer close(stuck)
		first, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := l.client.Attach(t.Context(), "flood", types.Exec{Permissions: workspace, Command: "cat /dev/zero", TimeoutMs: unhurried},
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
