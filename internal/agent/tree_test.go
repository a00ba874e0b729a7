//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// stubborn leaves processes behind that ignore what they can.
const stubborn = `trap '' TERM HUP; for i in 1 2 3; do (trap '' TERM HUP; setsid sleep 1000 & setsid sleep 1000 &); done; kill -STOP $$`

// endsAll is an agent whose session ends while commands run. It is the first process of its namespace, so that
// what it kills is its own.
func endsAll() (int, error) {
	if err := harden(); err != nil {
		return 99, err
	}
	tree := newProcessTree(nil)
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 99, err
	}
	p, fault := prepare(launch.Command{Process: specs.Process{Cwd: "/", Env: []string{"PATH=/usr/bin:/bin"}}, Shell: stubborn}, uint32(os.Getuid()))
	if fault.Fault != wire.FaultNone {
		return 99, errors.New(fault.Message)
	}
	p.Files = []int{null, null, null}
	for range 3 {
		if _, err := tree.start(context.Background(), p); err != nil {
			return 99, err
		}
	}
	if !waittest.Comes(func() bool { return len(descendants(1)) >= 3*7 }) {
		return 99, errors.New("the commands do not begin")
	}
	begun := time.Now()
	if err := tree.end(); err != nil {
		return 1, err
	}
	if left := descendants(1); len(left) > 0 || time.Since(begun) > cleanupLimit/2 {
		return 2, fmt.Errorf("after %v there are still %v", time.Since(begun), left)
	}
	if _, err := tree.start(context.Background(), p); !errors.Is(err, errEnding) {
		return 3, fmt.Errorf("a command is started after the end: %w", err)
	}
	return 0, nil
}

// When the session ends, so does all that the commands have started, and what is left of it is collected.
func TestAnEndingAgentEndsEverything(t *testing.T) {
	if out, err := newNamespace(t.TempDir(), envEnds+"=1").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// The parts of the program that commands run: in sweepsTracer a command leaves the first two, and in tracesRoot it is the third.
const (
	traced = "traced"
	tracer = "tracer"
	asking = "asking"
)

// traces is one of them: traced starts tracer, and that attaches itself to it, says so, and never waits for it. asking
// starts a program, has its parent trace it, and stops. They do not return but with an error.
func traces(part string) error {
	switch part {
	case asking:
		if err := exec.Command("/bin/sleep", "1000").Start(); err != nil {
			return err
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0); errno != 0 {
			return errno
		}
		if err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGUSR1); err != nil {
			return err
		}
		select {}
	case tracer:
		if err := unix.PtraceAttach(os.Getppid()); err != nil {
			return err
		}
		if err := os.WriteFile(os.Getenv("MARK"), nil, 0o600); err != nil {
			return err
		}
		select {}
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envTrace+"="+tracer)
	return cmd.Run()
}

// sweepsTracer is an agent whose command leaves a process and, below it, one that traces it. What is traced cannot be
// collected before its tracer has died, and the tracer is nobody's leftover before what it traces has died.
func sweepsTracer() (int, error) {
	if err := harden(); err != nil {
		return 99, err
	}
	tree := newProcessTree(nil)
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 99, err
	}
	mark := filepath.Join(os.Getenv(envDir), "mark")
	p, fault := prepare(launch.Command{
		Process: specs.Process{Cwd: "/", Env: []string{"PATH=/usr/bin:/bin", "MARK=" + mark, envTrace + "=" + traced}},
		Shell:   os.Getenv(envTrace) + ` & until test -e "$MARK"; do sleep 0.01; done`,
	}, uint32(os.Getuid()))
	if fault.Fault != wire.FaultNone {
		return 99, errors.New(fault.Message)
	}
	p.Files = []int{null, null, null}
	root, err := tree.start(context.Background(), p)
	if err != nil {
		return 99, err
	}
	<-root.exited
	if left := descendants(1); len(left) != 2 {
		return 99, fmt.Errorf("it has left %v", left)
	}
	if err := tree.sweep(root); err != nil {
		return 1, err
	}
	if left := descendants(1); len(left) > 0 {
		return 2, fmt.Errorf("there are still %v", left)
	}
	return 0, nil
}

// Nothing that a command leaves outlives it, and the container does not go for it, whoever traces whom.
func TestTracedAreSweptToo(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := newNamespace(t.TempDir(), envTrace+"="+program).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// endsTracing has the test program be tracesRoot.
const endsTracing = "tracing"

// tracesRoot is an agent whose command makes it its tracer and stops, with a process below it. A stop is no end.
func tracesRoot() (int, error) {
	if err := harden(); err != nil {
		return 99, err
	}
	tree := newProcessTree(nil)
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 99, err
	}
	p, fault := prepare(launch.Command{Process: specs.Process{
		Args: []string{"/proc/self/exe"}, Cwd: "/", Env: []string{"PATH=/usr/bin:/bin", envTrace + "=" + asking},
	}}, uint32(os.Getuid()))
	if fault.Fault != wire.FaultNone {
		return 99, errors.New(fault.Message)
	}
	p.Files = []int{null, null, null}
	root, err := tree.start(context.Background(), p)
	if err != nil {
		return 99, err
	}
	<-root.exited
	if !root.status.Signaled() || root.status.Signal() != unix.SIGKILL {
		return 1, fmt.Errorf("the command's end is %#x", root.status)
	}
	if err := tree.sweep(root); err != nil {
		return 2, err
	}
	if left := descendants(1); len(left) > 0 {
		return 3, fmt.Errorf("there are still %v", left)
	}
	return 0, nil
}

// A command that stops as one that the agent traces is killed, and nothing of it is left.
func TestCommandTracedByTheAgentIsKilled(t *testing.T) {
	if out, err := newNamespace(t.TempDir(), envEnds+"="+endsTracing).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
