package dockerexec

import (
	"errors"
	"sync"

	"github.com/libp2p/go-yamux/v5"
)

// windowGrowth bounds what the receive windows of one container's streams may have beyond what each begins with
// (256 KiB), in bytes, all together: with its streams, which maxCommands bounds, what a container can have us hold.
const windowGrowth = 16 << 20

// windowBudget is the rest of windowGrowth.
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
	grown  int // under budget.mu, as is opened
}

var errNoWindow = errors.New("the container's windows are as large as they may be")

// ReserveMemory is asked for a stream's first window, and then whenever that would grow; without, it stays as it is.
func (w *window) ReserveMemory(size int, _ uint8) error {
	w.budget.mu.Lock()
	defer w.budget.mu.Unlock()
	if !w.opened {
		w.opened = true
		return nil
	}
	if size > w.budget.left {
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
	w.grown = 0
}
