package hostfs

import (
	"sync"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/fair"
)

// walksAtOnce is how many trees of one user may be walked at a time: each walk takes up to maxDepth
// descriptors and a processor.
const walksAtOnce = 4

// heldAtOnce is how many Walks a user may have open: each holds up to maxDepth descriptors for as
// long as its reader takes.
const heldAtOnce = 8

// Walks bounds the walks of each user's trees, however many calls ask for them; further ones wait.
// NewWalks makes them: the zero value bounds nothing, and no root takes it. It is safe for
// concurrent use.
type Walks struct {
	turns fair.Turns
	held  *fair.Pool // open Walks
}

// NewWalks returns Walks of which none is under way.
func NewWalks() *Walks {
	return &Walks{turns: fair.Turns{Each: walksAtOnce}, held: fair.Each(heldAtOnce)}
}

// hold counts one more open Walk of a user, until it is released. The error is of class
// ResourceExhausted.
func (w *Walks) hold(user string) (release func(), err error) {
	if !w.held.Take(user, 1) {
		return nil, errs.Busy(
			"%d directories of the user are being read as a whole already: try again when one has been",
			heldAtOnce)
	}
	return sync.OnceFunc(func() { w.held.Give(user, 1) }), nil
}

// begin waits until one more of a user's trees may be walked; end ends that walk.
func (w *Walks) begin(user string) (end func()) {
	w.turns.Begin(user, nil)
	return func() { w.turns.End(user) }
}
