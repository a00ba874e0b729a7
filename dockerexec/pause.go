package dockerexec

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"
)

const (
	// pauseLimit bounds pausing a container, and resuming it.
	pauseLimit = 5 * time.Second
	// maxPaused is how much longer a container may be paused than it has run since, and restFor how long it runs when
	// that is reached: those who hold it one after the other, or in part at the same time, leave it half of the time.
	maxPaused = 3 * time.Second
	restFor   = time.Second
)

// pauses keeps containers paused for as long as anybody wants that. Docker starts no program in a paused container,
// and wakes one that it kills, so whoever does either uses the container, and is not in there while it is paused.
type pauses struct {
	mu sync.Mutex
	of map[string]*pausing // by the container's id, while there are users or holders, or it was paused lately
}

// pausing is one container. It is either used or held, each by any number.
type pausing struct {
	// Under pauses.mu.
	users, holders int
	changed        chan struct{} // closed, and made anew, when one of them leaves
	surplus        time.Duration // how much longer it was paused than it has run since, at a time
	at             time.Time
	rests          bool

	call   sync.Mutex // held while Docker pauses or resumes it
	paused bool       // under call
}

// use keeps a container from being paused until done is called. It waits while one is.
func (p *pauses) use(ctx context.Context, id string) (done func(), err error) {
	c, err := p.enter(ctx, id, func(c *pausing) *int { return &c.users }, func(c *pausing) bool { return c.holders == 0 })
	if err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { p.leave(c, &c.users) }), nil
}

// hold pauses a container until resume is called, by everyone who holds it. It waits while the container is used, and
// while it rests. One that does not run needs no pause.
func (p *pauses) hold(ctx context.Context, docker *client.Client, id string) (resume func() error, err error) {
	c, err := p.enter(ctx, id, func(c *pausing) *int { return &c.holders }, func(c *pausing) bool { return c.users == 0 && !c.rests })
	if err != nil {
		return nil, err
	}
	c.call.Lock()
	if !c.paused {
		if err = pause(ctx, docker, id); err == nil {
			c.paused = true
		}
	}
	c.call.Unlock()
	resume = sync.OnceValue(func() error { return p.resume(ctx, docker, id, c) })
	if err != nil {
		_ = resume()                                                        // Docker may yet do it
		return nil, fmt.Errorf("cannot pause container %.12s: %v", id, err) // its class would be taken for the other container's
	}
	return resume, nil
}

// resume lets a container go on if nobody else holds it.
func (p *pauses) resume(ctx context.Context, docker *client.Client, id string, c *pausing) (err error) {
	c.call.Lock()
	defer c.call.Unlock()
	p.mu.Lock()
	last := c.holders == 1 // whoever comes now waits for the call, and pauses it again
	p.mu.Unlock()
	if last {
		c.paused = false
		err = unpause(context.WithoutCancel(ctx), docker, id)
	}
	p.leave(c, &c.holders)
	return err
}

// enter counts one more in a container when that may be.
func (p *pauses) enter(ctx context.Context, id string, count func(*pausing) *int, may func(*pausing) bool) (*pausing, error) {
	for {
		p.mu.Lock()
		c := p.of[id]
		if c == nil {
			if p.of == nil {
				p.of = map[string]*pausing{}
			}
			c = &pausing{changed: make(chan struct{})}
			p.of[id] = c
		}
		rested := c.count(time.Now())
		if may(c) {
			*count(c)++
			p.mu.Unlock()
			return c, nil
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

// count counts the time until now, and returns what says that the container has rested; pauses.mu is held.
func (c *pausing) count(now time.Time) (rested <-chan time.Time) {
	passed := now.Sub(c.at)
	c.at = now
	if c.holders > 0 {
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
		return c.users+c.holders == 0 && now.Sub(c.at) >= c.surplus
	})
	close(c.changed)
	c.changed = make(chan struct{})
}

// pause is content when nothing runs in the container, or it is paused already.
func pause(ctx context.Context, docker *client.Client, id string) error {
	ctx, cancel := context.WithTimeout(ctx, pauseLimit)
	defer cancel()
	err := docker.ContainerPause(ctx, id)
	if err == nil || cerrdefs.IsNotFound(err) {
		return nil
	}
	found, inspectErr := docker.ContainerInspect(ctx, id)
	if cerrdefs.IsNotFound(inspectErr) || inspectErr == nil && found.State != nil && (found.State.Paused || !found.State.Running) {
		return nil
	}
	return err
}

// unpause ends a container that cannot go on.
func unpause(ctx context.Context, docker *client.Client, id string) error {
	trying, cancel := context.WithTimeout(ctx, pauseLimit)
	defer cancel()
	err := docker.ContainerUnpause(trying, id)
	if err == nil || cerrdefs.IsNotFound(err) || cerrdefs.IsConflict(err) { // gone, or not paused
		return nil
	}
	found, inspectErr := docker.ContainerInspect(trying, id)
	if cerrdefs.IsNotFound(inspectErr) || inspectErr == nil && found.State != nil && !found.State.Paused {
		return nil
	}
	end(ctx, docker, id)
	return fmt.Errorf("cannot resume container %.12s, which was ended: %w", id, err)
}
