package dockerexec

import (
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/cgroup"
)

// A container in which nothing runs is frozen after a while: Docker pauses it, so that it takes
// hardly any processor time (gVisor's kernel keeps running), and the next call resumes it. It is
// removed after a longer while, or when there are too many or the host has little memory left.

// Idle says what happens to containers in which nothing runs, except those of durable processes.
type Idle struct {
	// FreezeAfter is how long one is idle before it is frozen; 0 means never.
	FreezeAfter time.Duration
	// ReclaimAfter is how long a frozen one is idle before its memory is reclaimed, if the host has
	// zram; 0 means never.
	ReclaimAfter time.Duration
	// RemoveAfter is how long one is idle before it is removed.
	RemoveAfter time.Duration
	// MaxContainers is how many of them there may be; 0 means no bound. The least recently used are
	// removed first.
	MaxContainers int
	// MinFreeMemory is how much of the host's memory must be free, in bytes, or they are removed,
	// too; 0 means no bound.
	MinFreeMemory int64
}

// SetIdle changes what happens to idle containers, including existing ones, within seconds.
func (w *warm) SetIdle(idle Idle) { w.idle.Store(&idle) }

// tidyAfter is how long a container may be idle that keeps something in the user's directories
// where nothing would be otherwise: the user's other programs meet that.
func (i Idle) tidyAfter() time.Duration {
	const most = 30 * time.Second
	if i.FreezeAfter > 0 {
		return min(i.FreezeAfter, most)
	}
	return most
}

// interval returns how often idle containers are checked, at least every five seconds.
func (i Idle) interval() time.Duration {
	shortest := min(i.RemoveAfter, 20*time.Second)
	if i.FreezeAfter > 0 {
		shortest = min(shortest, i.FreezeAfter)
	}
	return max(shortest/4, 50*time.Millisecond)
}

// tendIdle freezes and removes idle containers, until Shutdown.
func (w *warm) tendIdle() {
	for {
		select {
		case <-time.After(w.idle.Load().interval()):
		case <-w.ctx.Done():
			return
		}
		limits, now := *w.idle.Load(), time.Now()
		w.retire(func(c *container, of life.Now) bool {
			idle := c.age(of, now)
			return idle > limits.RemoveAfter || c.spec.standsIn() && idle > limits.tidyAfter()
		})
		w.removeExcess(limits)
		if limits.FreezeAfter > 0 {
			w.freezeUnused(func(c *container) bool {
				return c.age(c.Now(), now) > limits.FreezeAfter
			})
		}
		if limits.ReclaimAfter > 0 {
			w.reclaimFrozen(now.Add(-limits.ReclaimAfter))
		}
	}
}

// age returns how long a user's container for calls has been idle; 0 if it is not.
func (c *container) age(of life.Now, now time.Time) time.Duration {
	if of.Calls > 0 || c.spec.IsPooled() {
		return 0
	}
	return now.Sub(of.LastUsed)
}

// removeExcess removes the least recently used containers while there are more than allowed or the
// host has too little memory. Each is gone before the next is removed.
func (w *warm) removeExcess(idle Idle) {
	for w.ctx.Err() == nil {
		unused := w.unused()
		why := ""
		switch {
		case len(unused) == 0:
		case idle.MaxContainers > 0 && len(unused) > idle.MaxContainers:
			why = "there are more than idle.maxContainers"
		case idle.MinFreeMemory > 0 && cgroup.AvailableMemory() < idle.MinFreeMemory:
			why = "the host has less memory left than idle.minFreeMemory"
		}
		if why == "" {
			return
		}
		c := unused[0]
		if c.Do(life.Evict, nil) != life.Removes {
			continue // a call was faster
		}
		w.tell(w.ctx, c, Incident{What: "removing container: idle", Why: why})
		if err := w.remove(c); err != nil {
			w.tell(w.ctx, c, Incident{What: "cannot remove container", Err: err})
			w.removeLater(c)
		}
	}
}

// unused returns users' idle containers, the least recently used first.
func (w *warm) unused() (unused []*container) {
	used := map[*container]time.Time{}
	w.mu.Lock()
	for _, c := range w.calls {
		if now := c.Now(); (now.State == life.Ready || now.State == life.Frozen) &&
			now.Calls == 0 && !c.spec.IsPooled() {
			unused = append(unused, c)
			used[c] = now.LastUsed
		}
	}
	w.mu.Unlock()
	slices.SortFunc(unused, func(a, b *container) int { return used[a].Compare(used[b]) })
	return unused
}

// freezesAtOnce is how many containers are being frozen at a time.
const freezesAtOnce = 2

// FreezeIdle freezes the idle containers of a user ahead of time. It blocks until that is done.
func (w *warm) FreezeIdle(user string) {
	w.freezeUnused(func(c *container) bool { return c.spec.User == user })
}

// freezeUnused freezes idle containers. It blocks until that is done.
func (w *warm) freezeUnused(match func(*container) bool) {
	var freezing errgroup.Group
	freezing.SetLimit(freezesAtOnce)
	for _, c := range w.unused() {
		if used := c.Now().LastUsed; match(c) {
			freezing.Go(func() error {
				if c.Now().LastUsed.Equal(used) { // or it was used before its turn has come
					w.freeze(c)
				}
				return nil
			})
		}
	}
	_ = freezing.Wait()
}

// freeze freezes a container if it is still idle.
func (w *warm) freeze(c *container) {
	frozen, err := c.Freeze(w.ctx)
	if err != nil && w.ctx.Err() == nil {
		w.tell(w.ctx, c, Incident{What: "cannot freeze a container; it keeps running", Err: err})
	}
	if frozen {
		w.freezes.frozen.Add(1)
		w.publish(c, "frozen")
	}
}

// thaw resumes a frozen container for a call.
func (w *warm) thaw(c *container, t *life.Thawing) {
	err := c.Thaw(w.ctx, t)
	w.mu.Lock()
	w.keepsMemory(c)
	w.mu.Unlock()
	if err != nil && w.ctx.Err() == nil {
		w.tell(w.ctx, c, Incident{What: "cannot resume a frozen container", Err: err})
		w.lose(c)
	}
}

// Freezes counts the containers that were frozen and thawed since New.
func (w *warm) Freezes() (frozen, thawed uint64) {
	return w.freezes.frozen.Load(), w.freezes.thawed.Load()
}
