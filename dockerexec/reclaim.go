package dockerexec

import (
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

// CanReclaim reports whether the host has where to reclaim memory to.
func (e *Executor) CanReclaim() bool {
	swap, err := e.cgroups.Swap()
	return err == nil && swap.Compressed && !swap.Disk
}

// Reclaim reclaims the memory of a frozen container, unless that was tried often enough.
func (e *Executor) Reclaim(c *Container) {
	e.mu.Lock()
	again := c.is(life.Frozen) && c.reclaims < reclaimTries
	if again {
		c.reclaims++
	}
	e.mu.Unlock()
	if !again {
		return
	}
	left, err := e.cgroups.Reclaim(c.ID())
	if err != nil {
		e.unreclaimed.Do(func() {
			e.cfg.Log.Warn().Err(err).Msg(
				"there is zram, but frozen containers keep their memory; docs/idle.md says how " +
					"to change that")
		})
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !c.is(life.Frozen): // it was thawed meanwhile
		c.reclaims = 0
		e.cgroups.ForbidSwap(c.ID())
	case err != nil || left < enoughReclaimed:
		c.reclaims = reclaimTries
	}
}

// keepsMemory ends the reclaiming of a container's memory, because it runs again.
func (e *Executor) keepsMemory(c *Container) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.reclaims > 0 {
		c.reclaims = 0
		e.cgroups.ForbidSwap(c.ID())
	}
}
