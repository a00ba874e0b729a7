package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/daycare-run/sandbox/api/types"
)

// survivor is a program that goes on for ever, with all that it can do against whoever would end it.
const survivor = `
import ctypes, os, signal, sys, time
how, libc = sys.argv[1], ctypes.CDLL(None, use_errno=True)
for s in set(range(1, 65)) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, 32, 33}:
    signal.signal(s, signal.SIG_IGN)
def others():
    return [int(p) for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid()]
def attempt(f, *a):
    try: f(*a)
    except OSError: pass
def attack():
    if how == 'stop':
        for p in others(): attempt(os.kill, p, signal.SIGSTOP)
    if how == 'stop all': attempt(os.kill, -1, signal.SIGSTOP)
    if how == 'kill': [attempt(os.kill, p, signal.SIGKILL) for p in others()]
    if how == 'trace':
        for p in others(): libc.ptrace(16, p, 0, 0)
def beat():
    while True:
        attack()
        with open('/home/alive', 'w') as f: f.write(str(time.time()))
        time.sleep(0.05)
if how == 'leave' and os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    beat()
if how == 'bomb':
    for i in range(3):
        if os.fork() == 0:
            while True:
                try: os.setsid()
                except OSError: pass
                try: os.fork()
                except OSError: time.sleep(0.02)
if how == 'fill':
    try:
        while True:
            if os.fork() == 0: time.sleep(7660)
    except OSError: pass
beat()
`

// survivals are the ways of survivor, crowds those that take all the processes that a container may have.
var (
	survivals = []string{"stop", "stop all", "kill", "trace", "leave"}
	crowds    = []string{"bomb", "fill"}
)

// survive has a user for each way, whose command goes on, and waits until all do, or have lost their container: what
// a container with too many processes does.
func (l *lab) survive(t *testing.T, ways []string) {
	t.Helper()
	begun := time.Now()
	for _, how := range ways {
		user := "by-" + strings.ReplaceAll(how, " ", "-")
		l.register(t, user)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = l.client.Exec(context.Background(), user, types.Exec{
				Permissions: workspace, TimeoutMs: unhurried, Argv: []string{"python3", "-c", survivor, how},
			})
		}()
		eventually(t, user+" runs", func() bool {
			select {
			case <-ended:
				return true
			default:
			}
			at, err := os.Stat(l.at(user, "alive"))
			return err == nil && at.ModTime().After(begun)
		})
	}
}

// survivors are what is left of these, by what the containers say that still run.
func (l *lab) survivors(t *testing.T) (left []string) {
	t.Helper()
	for _, c := range l.containers(t) {
		if c.State != container.StateRunning {
			continue
		}
		programs, err := l.programs(c.ID)
		if found, inspectErr := l.engine.ContainerInspect(t.Context(), c.ID); inspectErr != nil || !found.State.Running {
			continue // it has ended meanwhile
		}
		if err != nil || strings.Contains(programs, "/home/alive") {
			left = append(left, fmt.Sprint(c.Names[0], err))
		}
	}
	return left
}

// programs are what runs in a container, which may have no room for one that tells.
func (l *lab) programs(id string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	created, err := l.engine.ContainerExecCreate(ctx, id, container.ExecOptions{Cmd: []string{"/bin/ps", "-eo", "args"}, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return "", err
	}
	attached, err := l.engine.ContainerExecAttach(ctx, created.ID, container.ExecAttachOptions{})
	if err != nil {
		return "", err
	}
	defer attached.Close()
	defer context.AfterFunc(ctx, attached.Close)()
	var out bytes.Buffer
	if _, err = stdcopy.StdCopy(&out, &out, attached.Reader); err == nil && !strings.Contains(out.String(), "/bin/ps") {
		err = fmt.Errorf("ps says %.200q", out.String())
	}
	return out.String(), err
}

// isRunning reports whether a program runs in a container now. The agent, as it ends with the service, may end who looks, too.
func (l *lab) isRunning(t *testing.T, id, program string) (is bool) {
	t.Helper()
	eventually(t, "it can be told what runs", func() bool {
		programs, err := l.programs(id)
		found, inspectErr := l.engine.ContainerInspect(t.Context(), id)
		if cerrdefs.IsNotFound(inspectErr) || inspectErr == nil && !found.State.Running {
			is = false
			return true
		}
		is = strings.Contains(programs, program)
		return err == nil
	})
	return is
}

// Whatever a command does against the agent, it ends with the service: at once, when that is told to stop, and
// within seconds when that is killed.
func TestHostileCommandsEndWithTheService(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		all := func() {
			t.Helper()
			l.survive(t, survivals)
			if left := l.survivors(t); len(left) != len(survivals) {
				t.Errorf("only these can be seen: %v", left)
			}
			l.survive(t, crowds)
		}
		all()
		l.stop(syscall.SIGKILL)
		eventuallyWithin(t, 2*time.Minute, "nothing goes on after the service was killed", func() bool {
			return len(l.survivors(t)) == 0
		})
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		all()
		begun := time.Now()
		l.stop(syscall.SIGTERM)
		if took := time.Since(begun); took > 2*time.Minute {
			t.Errorf("the service took %v to stop", took)
		}
		if left := l.survivors(t); len(left) > 0 {
			t.Errorf("the service has stopped, and these go on: %v", left)
		}
	}, "SANDBOXD_SHUTDOWN_GRACE_MS=300", "SANDBOXD_LIMITS_PIDS=300")
}
