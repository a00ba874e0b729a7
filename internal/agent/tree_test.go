//go:build linux

package agent

import (
	"errors"
	"fmt"
	"os"
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
		if _, err := tree.start(p); err != nil {
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
	if _, err := tree.start(p); !errors.Is(err, errEnding) {
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
