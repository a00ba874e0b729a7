package warm

import (
	"cmp"
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/dockerexec"
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
func (r *Runner) SetIdle(idle Idle) { r.idle.Store(&idle) }

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
func (r *Runner) tendIdle(ctx context.Context) {
	for {
		select {
		case <-time.After(r.idle.Load().interval()):
		case <-ctx.Done():
			return
		}
		limits, now := *r.idle.Load(), time.Now()
		r.executor.Retire(func(c *dockerexec.Container, of life.Now) bool {
			idle := age(c, of, now)
			return idle > limits.RemoveAfter || c.Spec().StandsIn() && idle > limits.tidyAfter()
		})
		r.removeExcess(ctx, limits)
		if limits.FreezeAfter > 0 {
			r.freezeUnused(func(c *dockerexec.Container) bool {
				return age(c, c.Now(), now) > limits.FreezeAfter
			})
		}
		if limits.ReclaimAfter > 0 {
			r.reclaimFrozen(ctx, now.Add(-limits.ReclaimAfter))
		}
	}
}

// age returns how long a user's container for calls has been idle; 0 if it is not.
func age(c *dockerexec.Container, of life.Now, now time.Time) time.Duration {
	if of.Calls > 0 || c.Spec().IsPooled() {
		return 0
	}
	return now.Sub(of.LastUsed)
}

// removeExcess removes the least recently used containers while there are more than allowed or the
// host has too little memory. Each is gone before the next is removed.
func (r *Runner) removeExcess(ctx context.Context, idle Idle) {
	for ctx.Err() == nil {
		unused := r.unused()
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
		r.executor.Tell(ctx, c, dockerexec.Incident{What: "removing container: idle", Why: why})
		if err := r.executor.Remove(c); err != nil {
			r.executor.Tell(ctx, c, dockerexec.Incident{What: "cannot remove container", Err: err})
			r.executor.RemoveLater(c)
		}
	}
}

// unused returns users' idle containers, the least recently used first.
func (r *Runner) unused() []*dockerexec.Container {
	users := slices.DeleteFunc(r.executor.ForCalls(), func(c *dockerexec.Container) bool {
		return c.Spec().IsPooled()
	})
	return idle(users, func(*dockerexec.Container, *dockerexec.Container) int { return 0 })
}

// idle returns the containers that no call needs, in order, and among equals the least recently
// used first.
func idle(
	list []*dockerexec.Container, order func(a, b *dockerexec.Container) int,
) (idle []*dockerexec.Container) {
	used := map[*dockerexec.Container]time.Time{}
	for _, c := range list {
		if now := c.Now(); (now.State == life.Ready || now.State == life.Frozen) && now.Calls == 0 {
			idle, used[c] = append(idle, c), now.LastUsed
		}
	}
	slices.SortFunc(idle, func(a, b *dockerexec.Container) int {
		return cmp.Or(order(a, b), used[a].Compare(used[b]))
	})
	return idle
}

// freezesAtOnce is how many containers are being frozen at a time.
const freezesAtOnce = 2

// FreezeIdle freezes the idle containers of a user ahead of time. It blocks until that is done.
func (r *Runner) FreezeIdle(user string) {
	r.freezeUnused(func(c *dockerexec.Container) bool { return c.Spec().User == user })
}

// freezeUnused freezes idle containers. It blocks until that is done.
func (r *Runner) freezeUnused(match func(*dockerexec.Container) bool) {
	var freezing errgroup.Group
	freezing.SetLimit(freezesAtOnce)
	for _, c := range r.unused() {
		if used := c.Now().LastUsed; match(c) {
			freezing.Go(func() error {
				// Unless it was used before its turn has come.
				if c.Now().LastUsed.Equal(used) && r.executor.Freeze(c) {
					r.freezes.frozen.Add(1)
				}
				return nil
			})
		}
	}
	_ = freezing.Wait()
}

// reclaimFrozen reclaims the memory of frozen containers that were last used before a time, one
// after the other.
func (r *Runner) reclaimFrozen(ctx context.Context, before time.Time) {
	if !r.executor.CanReclaim() {
		return
	}
	for _, c := range r.unused() {
		if ctx.Err() != nil {
			return
		}
		if now := c.Now(); now.State == life.Frozen && now.LastUsed.Before(before) {
			r.executor.Reclaim(c)
		}
	}
}

// Freezes counts the containers that were frozen and thawed since New.
func (r *Runner) Freezes() (frozen, thawed uint64) {
	return r.freezes.frozen.Load(), r.freezes.thawed.Load()
}
