package hostfs

import (
	"sync"

	"github.com/daycare-run/sandbox/internal/errs"
)

// walksAtOnce is how many trees of one user may be walked at a time: each walk takes up to maxDepth
// descriptors and a processor.
const walksAtOnce = 4

// heldAtOnce is how many Walks a user may have open: each holds up to maxDepth descriptors for as
// long as its reader takes.
const heldAtOnce = 8

// Walks bounds the walks of each user's trees, however many calls ask for them; further ones wait.
// The zero value is ready to use. It is safe for concurrent use.
type Walks struct {
	mu sync.Mutex
	of map[string]*walkers
	// held counts each user's open Walks.
	held map[string]int
}

// hold counts one more open Walk of a user, until it is released. The error is of class
// ResourceExhausted.
func (w *Walks) hold(user string) (release func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held == nil {
		w.held = map[string]int{}
	}
	if w.held[user] == heldAtOnce {
		return nil, errs.Busy(
			"%d directories of the user are being read as a whole already: try again when one has been",
			heldAtOnce)
	}
	w.held[user]++
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.held[user]--; w.held[user] == 0 {
			delete(w.held, user)
		}
	}), nil
}

// walkers are the walks of one user.
type walkers struct {
	places chan struct{}
	count  int // includes those that wait; under Walks.mu
}

// begin waits until one more of a user's trees may be walked; end ends that walk.
func (w *Walks) begin(user string) (end func()) {
	w.mu.Lock()
	if w.of == nil {
		w.of = map[string]*walkers{}
	}
	of := w.of[user]
	if of == nil {
		of = &walkers{places: make(chan struct{}, walksAtOnce)}
		w.of[user] = of
	}
	of.count++
	w.mu.Unlock()
	of.places <- struct{}{}
	return func() {
		<-of.places
		w.mu.Lock()
		defer w.mu.Unlock()
		if of.count--; of.count == 0 {
			delete(w.of, user)
		}
	}
}
