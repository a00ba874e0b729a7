package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// eats needs more memory than any container of these scenarios has.
const eats = `python3 -c "x = b'x' * (1 << 30); print(len(x))"`

// startsTooMany starts more processes than any container of these scenarios may have.
const startsTooMany = `exec python3 -c '
import subprocess
print("begun", flush=True)
for _ in range(600): subprocess.Popen(["sleep", "98761"])'`

const (
	outOfMemory    = "out of memory: this container may use 256Mi (limits.memory), its tmpfs included"
	outOfProcesses = "out of processes: this container may have 128 processes and threads (limits.pids)"
)

// says reports whether a result has a hint of these words.
func says(list []types.Hint, words string) bool {
	for _, h := range list {
		if h.Message == words {
			return true
		}
	}
	return false
}

// A command that uses up a limit is told which, and how much that is; what it has printed is kept, and the next call runs.
func TestLimitsAreTold(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "limits")
		out := l.run(t, "limits", types.Exec{Command: "echo before; exec " + eats})
		if out.Stdout != "before\n" || out.Signal == nil || *out.Signal != "SIGKILL" || !says(out.Hints, outOfMemory) {
			t.Errorf("memory: %s %q %q, %+v", exitText(out), out.Stdout, out.Stderr, out.Hints)
		}
		// Whoever starts too much is refused that, and everything else goes on.
		before := l.sh(t, "limits", "echo on") // makes the container
		id := l.containerOf(t, "limits").ID
		out = l.run(t, "limits", types.Exec{Command: startsTooMany})
		if before != "on" || out.Stdout != "begun\n" || out.ExitCode == nil || *out.ExitCode != 1 || !says(out.Hints, outOfProcesses) {
			t.Errorf("processes: %s %q %q, %+v", exitText(out), out.Stdout, out.Stderr, out.Hints)
		}
		if got := l.sh(t, "limits", "echo on"); got != "on" || l.containerOf(t, "limits").ID != id {
			t.Errorf("afterwards: %q, in another container: %t", got, l.containerOf(t, "limits").ID != id)
		}
		if out := l.run(t, "limits", types.Exec{Command: "kill -9 $$"}); len(out.Hints) != 0 {
			t.Errorf("one that was killed without a limit: %+v", out.Hints)
		}
		p := l.startProcess(t, "limits", types.StartProcess{Command: "echo before; exec " + eats})
		eventually(t, "the process has ended", func() bool { return l.process(t, "limits", p.ID).Status == types.ProcessExited })
		if now := l.process(t, "limits", p.ID); !now.OOMKilled || now.Reason != outOfMemory || !strings.HasSuffix(logOf(t, p), "[sandbox: "+outOfMemory+"]\n") {
			t.Errorf("%+v, log %q", now, logOf(t, p))
		}
	}, "SANDBOXD_LIMITS_MEMORY=256Mi", "SANDBOXD_LIMITS_PIDS=128")
}

// A persistent sandbox and runs out of memory keeps its home, and goes on from it in another container.
func TestPersistentOutOfMemory(t *testing.T) {
	eachKeeper(t, func(t *testing.T, k *keeper, again func() *keeper) {
		for range 2 {
			b := k.make(t, func(c *persistent.Create) { c.Template.Memory = 256 << 20 })
			runIn(t, b, "echo text > kept")
			r := follow(t, b, "echo before; exec "+eats)
			var printed string
			for {
				e, err := r.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if printed += string(e.Data); e.End == nil {
					continue
				}
				if printed != "before\n" || e.End.Signal != 9 || e.End.Exhausted == nil || e.End.Exhausted.Error() != outOfMemory {
					t.Errorf("%q, %+v", printed, e.End)
				}
				break
			}
			b, err := k.Any(b.ID())
			if err != nil {
				t.Fatal(err)
			}
			if got := runIn(t, b, "cat kept"); got != "text\n[0 0 false]" {
				t.Errorf("%q", got)
			}
			// Under runc the kernel ends the program alone.
			if moved := b.Info().Moved; strings.HasSuffix(k.runtime, "runsc") && (moved == nil || moved.Why != outOfMemory) {
				t.Errorf("%+v", b.Info())
			}
			k.end()
			k = again()
		}
	})
}

// The runtime tells Docker by two ways that a container was out of memory and that it has ended.
// Here both come at once, and on a busy machine Docker then misses the first.
func TestOutOfMemoryThatDockerMisses(t *testing.T) {
	l := newLab(t, "runsc", "SANDBOXD_LIMITS_MEMORY=256Mi")
	l.register(t, "missed")
	p := l.startProcess(t, "missed", types.StartProcess{Command: "until [ -e begin ]; do sleep 0.1; done; exec " + eats})
	id := l.processContainersOf(t, "missed")[0].ID
	found, err := l.engine.ContainerInspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	shim, err := engine.ShimOf(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(shim.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(shim.PID, syscall.SIGCONT) //nolint:errcheck // it may have gone
	l.put(t, "missed", "begin", "")
	eventually(t, "the kernel has ended gVisor", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", found.State.Pid))
		return err != nil || strings.Fields(string(stat))[2] == "Z"
	})
	if err := syscall.Kill(shim.PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process has ended", func() bool { return l.process(t, "missed", p.ID).Status == types.ProcessExited })
	if now := l.process(t, "missed", p.ID); !now.OOMKilled || now.Reason != outOfMemory {
		t.Errorf("%+v", now)
	}
}
