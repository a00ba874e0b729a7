//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/wire"
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
	for begun := time.Now(); len(descendants(1)) < 3*7; time.Sleep(time.Millisecond) {
		if time.Since(begun) > timeout {
			return 99, errors.New("the commands do not begin")
		}
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

// The parts of the program that a command leaves in sweepsTracer.
const (
	traced = "traced"
	tracer = "tracer"
)

// traces is one of them: traced starts tracer, and that attaches itself to it, says so, and never waits for it. They do
// not return but with an error.
func traces(part string) error {
	if part == tracer {
		runtime.LockOSThread()
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
	if err := tree.sweep(); err != nil {
		return 1, err
	}
	if left := descendants(1); len(left) > 0 {
		return 2, fmt.Errorf("there are still %v", left)
	}
	return 0, nil
}

// Nothing that a command leaves outlives it, and the container does not go for it, whoever traces whom.
func TestWhoIsTracedIsSweptToo(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := newNamespace(t.TempDir(), envTrace+"="+program).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
