package dockerexec

import (
	"time"

	"github.com/daycare-run/sandbox/dockerexec/life"
)

// The memory of a container that has been idle and frozen for a while is reclaimed: the kernel is
// asked to move it to compressed memory (zram), from where it comes back as it is used. It never
// goes to a disk: there are secrets in it.

const (
	// reclaimTries is how often reclaiming the memory of a frozen container is tried, as the kernel
	// gives back only what it has the time for. enoughReclaimed is how much may be left, in bytes,
	// for it not to be tried again: of a gVisor container the kernel keeps 5 MiB for itself, page
	// tables for the most part.
	reclaimTries    = 8
	enoughReclaimed = 8 << 20
)

// reclaimFrozen reclaims the memory of frozen containers that were last used before a time, one
// after the other.
func (w *warm) reclaimFrozen(before time.Time) {
	swap, err := w.cgroups.Swap()
	if err != nil || !swap.Compressed || swap.Disk {
		return
	}
	for _, c := range w.unused() {
		if w.ctx.Err() != nil {
			return
		}
		now := c.Now()
		w.mu.Lock()
		again := now.State == life.Frozen && c.reclaims < reclaimTries &&
			now.LastUsed.Before(before)
		if again {
			c.reclaims++
		}
		w.mu.Unlock()
		if again {
			w.reclaim(c)
		}
	}
}

// keepsMemory ends the reclaiming of a container's memory, because it runs again; e.mu is held.
func (h *host) keepsMemory(c *container) {
	if c.reclaims > 0 {
		c.reclaims = 0
		h.cgroups.ForbidSwap(c.ID())
	}
}

func (w *warm) reclaim(c *container) {
	left, err := w.cgroups.Reclaim(c.ID())
	if err != nil {
		w.unreclaimed.Do(func() {
			w.cfg.Log.Warn().Err(err).Msg(
				"there is zram, but frozen containers keep their memory; docs/idle.md says how to change that")
		})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !c.is(life.Frozen): // it was thawed meanwhile
		c.reclaims = 0
		w.cgroups.ForbidSwap(c.ID())
	case err != nil || left < enoughReclaimed:
		c.reclaims = reclaimTries
	}
}
