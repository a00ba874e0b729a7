//go:build linux

package agent

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// What ends a command is kept until the command has come, also if a later one has come before it.
func TestControlOfACommandThatCameLate(t *testing.T) {
	a := &Agent{commands: map[uint32]*command{}, early: map[uint32][]wire.Control{}, missing: map[uint32]bool{}}
	tell := func(m wire.Control) {
		t.Helper()
		var frame bytes.Buffer
		if err := wire.WriteMessage(&frame, wire.KindControl, m); err != nil {
			t.Fatal(err)
		}
		if err := a.control(&frame); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	a.add(3, &command{})
	a.add(7, &command{})
	a.remove(3)
	for range 2 * maxEarly {
		tell(wire.Control{Stream: 5, Resize: &specs.Box{Width: 1, Height: 1}})
	}
	for range 2 {
		tell(wire.Control{Stream: 5, Signal: int(unix.SIGKILL)})
	}
	tell(wire.Control{Stream: 3, Signal: int(unix.SIGKILL)}) // it has ended
	late := &command{}
	a.add(5, late)
	if n := len(late.early); n != maxEarly+1 || late.early[n-1].Signal != int(unix.SIGKILL) {
		t.Errorf("%d frames wait: %+v", n, late.early)
	}
	if len(a.early)+len(a.missing) != 0 || a.last != 7 {
		t.Errorf("early %v, missing %v, last %d", a.early, a.missing, a.last)
	}
}
