package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/engine"
)

const (
	// maxPaused is how much longer a container may be paused than it has run since, and restFor is how long it runs when
	// that is reached: callers that hold it one after the other, or overlap, leave it half of the time.
	maxPaused = 3 * time.Second
	restFor   = time.Second
)

// pauses keeps containers paused for as long as any caller needs that. Docker starts no program in a paused container, and
// wakes one that it kills, so code that does either marks the container as used first: a used container is not paused.
type pauses struct {
	mu sync.Mutex
	of map[string]*pausing // by the container's id, while there are users or holders, or it was paused lately
}

// pausing is the state of one container. It is either used or held, each by any number of callers. While it is not
// held, it may be frozen: paused until it is used or, if it was paused on request, until goOn.
type pausing struct {
	// Under pauses.mu.
	users, holders int
	frozen         bool
	asked          bool          // paused on request: not to be used until goOn
	changed        chan struct{} // closed, and recreated, when a user or a holder leaves
	surplus        time.Duration // how much longer it was paused than it had run since, as of at
	at             time.Time
	rests          bool

	call   chan struct{} // holds one while Docker pauses or resumes it
	paused bool          // under call
}

// ErrPaused is the error for a container that was paused on request.
var ErrPaused = fmt.Errorf("it is paused: resume it first: %w", cerrdefs.ErrFailedPrecondition)

// use keeps a container from being paused until done is called, and thaws a frozen one. It waits while the container
// is held. A container that cannot be thawed is ended. The error is ErrPaused if the container was paused on request.
func (p *pauses) use(ctx context.Context, eng engine.Engine, id string) (done func(), err error) {
	return p.wake(ctx, eng, id, func(c *pausing) error {
		if c.asked {
			return ErrPaused
		}
		return nil
	})
}

// wake is use, unless refused returns an error.
func (p *pauses) wake(ctx context.Context, eng engine.Engine, id string, refused func(*pausing) error) (done func(), err error) {
	c, done, err := p.occupy(ctx, id, refused)
	if err != nil {
		return nil, err
	}
	c.call <- struct{}{}
	defer func() { <-c.call }()
	if c.paused {
		c.paused = false
		err = eng.Resume(context.WithoutCancel(ctx), id)
	}
	if err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// refuseNobody lets every container be woken, for a signal that must reach it.
func refuseNobody(*pausing) error { return nil }

// remove is for callers that end a container, whatever its state, and resume it themselves. done forgets it.
func (p *pauses) remove(ctx context.Context, id string) (done func(), err error) {
	c, done, err := p.occupy(ctx, id, func(c *pausing) error { c.asked = false; return nil })
	if err != nil {
		return nil, err
	}
	c.call <- struct{}{}
	c.paused = false // or its next holder would take it for paused, if it still exists
	<-c.call
	return done, nil
}

// goOn resumes a container that was paused on request.
func (p *pauses) goOn(ctx context.Context, eng engine.Engine, id string) error {
	done, err := p.wake(ctx, eng, id, func(c *pausing) error { c.asked = false; return nil })
	if err == nil {
		done()
	}
	return err
}

// occupy is wake for callers that resume a frozen container themselves.
func (p *pauses) occupy(ctx context.Context, id string, refused func(*pausing) error) (c *pausing, done func(), err error) {
	c, err = p.enter(ctx, id, func(c *pausing) *int { return &c.users }, func(c *pausing) (bool, error) {
		if err := refused(c); err != nil {
			return false, err
		}
		c.frozen = false // so its last holder wakes it
		return c.holders == 0, nil
	})
	if err != nil {
		return nil, nil, err
	}
	return c, sync.OnceFunc(func() { p.leave(c, &c.users) }), nil
}

// freeze pauses a container until it is used, if still says so once it is unused.
func (p *pauses) freeze(ctx context.Context, eng engine.Engine, id string, still func() bool) (frozen bool, err error) {
	c, err := p.enter(ctx, id, func(c *pausing) *int { return &c.holders }, func(c *pausing) (bool, error) { return c.users == 0, nil })
	if err != nil {
		return false, err
	}
	c.call <- struct{}{}
	if frozen = still(); frozen {
		err = p.have(ctx, eng, id, c)
	}
	if frozen = frozen && err == nil; frozen {
		p.mu.Lock()
		c.frozen = true
		p.mu.Unlock()
	}
	<-c.call
	return frozen, errors.Join(err, p.resume(ctx, eng, id, c, err != nil)) // after an error Docker may still pause it
}

// have makes Docker pause a container; c.call is held. A frozen one may have been resumed through Docker.
func (p *pauses) have(ctx context.Context, eng engine.Engine, id string, c *pausing) error {
	p.mu.Lock()
	long := c.frozen
	p.mu.Unlock()
	if c.paused && !long {
		return nil
	}
	err := eng.Pause(ctx, id)
	if err == nil {
		c.paused = true
	}
	return err
}

// stop pauses a container until goOn: new uses are refused. It waits for the present ones to end.
func (p *pauses) stop(ctx context.Context, eng engine.Engine, id string) error {
	p.mu.Lock()
	c := p.get(id)
	c.asked = true
	p.mu.Unlock()
	frozen, err := p.freeze(ctx, eng, id, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return c.asked
	})
	if err != nil {
		p.mu.Lock()
		c.asked = false
		p.mu.Unlock()
	} else if !frozen {
		err = fmt.Errorf("it was resumed meanwhile: %w", cerrdefs.ErrConflict)
	}
	return err
}

// isAsked reports whether a container was paused on request, or is about to be.
func (p *pauses) isAsked(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.of[id]
	return c != nil && c.asked
}

// isFrozen reports whether a container is paused until it is used or resumed.
func (p *pauses) isFrozen(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.of[id]
	return c != nil && (c.frozen || c.asked)
}

// found records that a container was found paused: it is frozen.
func (p *pauses) found(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[id] == nil {
		c := p.get(id)
		c.frozen, c.paused = true, true
	}
}

// get finds or makes the state of a container; p.mu is held.
func (p *pauses) get(id string) *pausing {
	if p.of == nil {
		p.of = map[string]*pausing{}
	}
	if p.of[id] == nil {
		p.of[id] = &pausing{changed: make(chan struct{}), call: make(chan struct{}, 1)}
	}
	return p.of[id]
}

// resume resumes a container unless others hold it or it is frozen. doubtful says that it may be paused although
// pausing failed.
func (p *pauses) resume(ctx context.Context, eng engine.Engine, id string, c *pausing, doubtful bool) (err error) {
	c.call <- struct{}{}
	defer func() { <-c.call }()
	p.mu.Lock()
	last := c.holders == 1 && !c.frozen // a later holder waits for c.call, and pauses it again
	p.mu.Unlock()
	if last && (c.paused || doubtful) {
		c.paused = false
		err = eng.Resume(context.WithoutCancel(ctx), id)
	}
	p.leave(c, &c.holders)
	return err
}

// enter counts one more user or holder of a container once may allows it.
func (p *pauses) enter(ctx context.Context, id string, count func(*pausing) *int, may func(*pausing) (bool, error)) (*pausing, error) {
	for {
		p.mu.Lock()
		c := p.get(id)
		rested := c.count(time.Now())
		ok, err := may(c)
		if ok {
			*count(c)++
		}
		if ok || err != nil {
			p.mu.Unlock()
			return c, err
		}
		changed := c.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-rested:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// count counts the time until now, and returns a channel that says when the container has rested; pauses.mu is held.
func (c *pausing) count(now time.Time) (rested <-chan time.Time) {
	passed := now.Sub(c.at)
	c.at = now
	if c.holders > 0 && !c.frozen { // nothing would run in a frozen one anyway
		c.surplus += passed
	} else {
		c.surplus = max(c.surplus-passed, 0)
	}
	c.rests = c.surplus > maxPaused || c.rests && c.surplus > maxPaused-restFor
	if c.rests && c.holders == 0 {
		rested = time.After(c.surplus - (maxPaused - restFor))
	}
	return rested
}

func (p *pauses) leave(c *pausing, count *int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	c.count(now)
	*count--
	maps.DeleteFunc(p.of, func(_ string, c *pausing) bool {
		return c.users+c.holders == 0 && !c.frozen && !c.asked && now.Sub(c.at) >= c.surplus
	})
	close(c.changed)
	c.changed = make(chan struct{})
}
