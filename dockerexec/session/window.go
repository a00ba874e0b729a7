package session

import (
	"errors"
	"sync"

	"github.com/libp2p/go-yamux/v5"
)

// windowGrowth bounds, in bytes, how much the receive windows of one container's streams may grow
// in total beyond their initial size (256 KiB each). Together with a bound on commands it bounds
// what a container can make us hold.
const windowGrowth = 16 << 20

// windowBudget is what is left of windowGrowth.
type windowBudget struct {
	mu   sync.Mutex
	left int
}

// open is the yamux.MemoryManager of a new stream.
func (b *windowBudget) open() (yamux.MemoryManager, error) { return &window{budget: b}, nil }

// window is one stream's part of a budget.
type window struct {
	budget *windowBudget
	opened bool
	grown  int  // under budget.mu, as are opened and done
	done   bool // yamux may ask once more, for what is still read of a stream that has ended
}

var errNoWindow = errors.New("the container's windows are as large as they may be")

// ReserveMemory is called for a stream's first window, and then whenever the window would grow;
// after an error it keeps its size.
func (w *window) ReserveMemory(size int, _ uint8) error {
	w.budget.mu.Lock()
	defer w.budget.mu.Unlock()
	if !w.opened {
		w.opened = true
		return nil
	}
	if w.done || size > w.budget.left {
		return errNoWindow
	}
	w.budget.left -= size
	w.grown += size
	return nil
}

// ReleaseMemory gives a part back.
func (w *window) ReleaseMemory(size int) {
	w.budget.mu.Lock()
	defer w.budget.mu.Unlock()
	size = min(size, w.grown)
	w.budget.left += size
	w.grown -= size
}

// Done gives all back.
func (w *window) Done() {
	w.budget.mu.Lock()
	defer w.budget.mu.Unlock()
	w.budget.left += w.grown
	w.grown, w.done = 0, true
}
