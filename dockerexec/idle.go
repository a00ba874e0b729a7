package dockerexec

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/internal/cgroup"
)

// A container in which nothing runs is frozen after a while: Docker pauses it, so that it takes hardly any processor
// time (gVisor's kernel keeps running), and the next call resumes it. It is removed after a longer while, or when
// there are too many or the host has little memory left.

// Idle says what happens to containers in which nothing runs, except those of durable processes.
type Idle struct {
	// FreezeAfter is how long one is idle before it is frozen; 0 means never.
	FreezeAfter time.Duration
	// ReclaimAfter is how long a frozen one is idle before its memory is reclaimed, if the host has zram; 0 means never.
	ReclaimAfter time.Duration
	// RemoveAfter is how long one is idle before it is removed.
	RemoveAfter time.Duration
	// MaxContainers is how many of them there may be; 0 means no bound. The least recently used are removed first.
	MaxContainers int
	// MinFreeMemory is how much of the host's memory must be free, in bytes, or they are removed, too; 0 means no bound.
	MinFreeMemory int64
}

// SetIdle changes what happens to idle containers, including existing ones, within seconds.
func (e *Executor) SetIdle(idle Idle) { e.idle.Store(&idle) }

// tidyAfter is how long a container may be idle that keeps something in the user's directories where nothing would be
// otherwise: the user's other programs meet that.
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
func (e *Executor) tendIdle() {
	for {
		select {
		case <-time.After(e.idle.Load().interval()):
		case <-e.ctx.Done():
			return
		}
		idle, now := *e.idle.Load(), time.Now()
		e.retire(func(c *container) bool {
			return c.users == 0 && !c.spec.IsPooled() && c.lastUsed.Before(now.Add(-idle.RemoveAfter))
		})
		e.retire(func(c *container) bool {
			return c.users == 0 && c.spec.standsIn() && c.lastUsed.Before(now.Add(-idle.tidyAfter()))
		})
		e.removeExcess(idle)
		if idle.FreezeAfter > 0 {
			e.freezeUnused(func(c *container) bool { return c.lastUsed.Before(now.Add(-idle.FreezeAfter)) })
		}
		if idle.ReclaimAfter > 0 {
			e.reclaimFrozen(now.Add(-idle.ReclaimAfter))
		}
	}
}

// removeExcess removes the least recently used containers while there are more than allowed or the host has too little
// memory. Each is gone before the next is removed.
func (e *Executor) removeExcess(idle Idle) {
	for e.ctx.Err() == nil {
		e.mu.Lock()
		unused := e.unused()
		why := ""
		switch {
		case len(unused) == 0:
		case idle.MaxContainers > 0 && len(unused) > idle.MaxContainers:
			why = "there are more than idle.maxContainers"
		case idle.MinFreeMemory > 0 && cgroup.AvailableMemory() < idle.MinFreeMemory:
			why = "the host has less memory left than idle.minFreeMemory"
		}
		if why == "" {
			e.mu.Unlock()
			return
		}
		c := unused[0]
		e.drop(c)
		e.mu.Unlock()
		e.tell(e.ctx, c, Incident{What: "removing container: idle", Why: why})
		e.discard(c)
		select {
		case <-c.gone:
		case <-e.ctx.Done():
		}
	}
}

// unused returns users' idle containers, the least recently used first; e.mu is held.
func (e *Executor) unused() (unused []*container) {
	for _, c := range e.containers {
		if c.isSettled() && c.users == 0 && !c.spec.IsPooled() {
			unused = append(unused, c)
		}
	}
	slices.SortFunc(unused, func(a, b *container) int { return a.lastUsed.Compare(b.lastUsed) })
	return unused
}

// freezesAtOnce is how many containers are being frozen at a time.
const freezesAtOnce = 2

// freezeUnused freezes idle containers. It blocks until that is done.
func (e *Executor) freezeUnused(match func(*container) bool) {
	e.mu.Lock()
	var chosen []*container
	for _, c := range e.unused() {
		if !c.frozen && !c.freezing && c.running == 0 && match(c) {
			c.frozen, c.freezing = true, true // so a call that comes from now on thaws it
			chosen = append(chosen, c)
		}
	}
	e.mu.Unlock()
	var freezing errgroup.Group
	freezing.SetLimit(freezesAtOnce)
	for _, c := range chosen {
		freezing.Go(func() error { e.freeze(c); return nil })
	}
	_ = freezing.Wait()
}

// freeze freezes a container if it is still idle.
func (e *Executor) freeze(c *container) {
	frozen, err := e.pauses.freeze(e.ctx, e.engine, c.id, e.staysIdle(c))
	if err != nil && e.ctx.Err() == nil {
		e.tell(e.ctx, c, Incident{What: "cannot freeze a container; it keeps running", Err: err})
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	c.freezing = false
	if frozen {
		e.freezes.frozen++
		e.publish(c, "frozen")
		return
	}
	c.frozen, c.lastUsed = false, time.Now() // so that it is tried again after the same time
}

// staysIdle returns what pauses.freeze asks: whether a container is still to be frozen.
func (e *Executor) staysIdle(c *container) func() bool {
	return func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return c.frozen && c.users == 0 && e.containers[c.fingerprint] == c && !e.closed
	}
}

// thawing is the resuming of a frozen container. err is set when done is closed.
type thawing struct {
	done chan struct{}
	err  error
}

// thaw resumes a frozen container in the background; e.mu is held. What is sent to its agent meanwhile waits in the
// agent's stdin, so a command begins when the container resumes, and not when Docker has said so.
func (e *Executor) thaw(c *container) {
	if !c.frozen {
		return
	}
	sleeps := c.sleeps()
	c.frozen = false // the goroutine that is about to freeze it sees that it is used
	e.freezes.thawed++
	if sleeps {
		return // it resumes when it is taken over
	}
	t := &thawing{done: make(chan struct{})}
	c.thawing = t
	e.publish(c, "idle")
	e.work.Go(func() {
		done, err := e.pauses.use(e.ctx, e.engine, c.id)
		if err == nil {
			done()
		}
		e.mu.Lock()
		e.keepsMemory(c)
		e.mu.Unlock()
		t.err = err
		close(t.done)
		if err != nil && e.ctx.Err() == nil {
			e.tell(e.ctx, c, Incident{What: "cannot resume a frozen container", Err: err})
			e.forget(c)
		}
	})
}

// explain returns the error of a session that broke, with the reason why its container did not resume.
func (t *thawing) explain(ctx context.Context, err error) error {
	select {
	case <-t.done:
	case <-ctx.Done():
		return err
	}
	if t.err != nil {
		return fmt.Errorf("%w (%v)", err, t.err)
	}
	return err
}

// Freezes counts the containers that were frozen and thawed since New.
func (e *Executor) Freezes() (frozen, thawed uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.freezes.frozen, e.freezes.thawed
}
