package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
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

// pausing is one container. It is either used or held, each by any number. Held by nobody, it may be frozen: paused until
// somebody uses it.
type pausing struct {
	// Under pauses.mu.
	users, holders int
	frozen         bool
	changed        chan struct{} // closed, and made anew, when one of them leaves
	surplus        time.Duration // how much longer it was paused than it has run since, at a time
	at             time.Time
	rests          bool

	call   sync.Mutex // held while Docker pauses or resumes it
	paused bool       // under call
}

// use keeps a container from being paused until done is called, and thaws one that is frozen. It waits while one is held.
// One that cannot be thawed has been ended.
func (p *pauses) use(ctx context.Context, docker *client.Client, id string) (done func(), err error) {
	c, done, err := p.occupy(ctx, id)
	if err != nil {
		return nil, err
	}
	c.call.Lock()
	defer c.call.Unlock()
	if c.paused {
		c.paused = false
		err = unpause(context.WithoutCancel(ctx), docker, id)
	}
	if err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// occupy is use for who wakes a frozen one himself.
func (p *pauses) occupy(ctx context.Context, id string) (c *pausing, done func(), err error) {
	c, err = p.enter(ctx, id, func(c *pausing) *int { return &c.users }, func(c *pausing) bool {
		c.frozen = false // so the last who holds it wakes it
		return c.holders == 0
	})
	if err != nil {
		return nil, nil, err
	}
	return c, sync.OnceFunc(func() { p.leave(c, &c.users) }), nil
}

// freeze pauses a container until somebody uses it, if it is still to be when nobody does.
func (p *pauses) freeze(ctx context.Context, docker *client.Client, id string, still func() bool) (frozen bool, err error) {
	c, err := p.enter(ctx, id, func(c *pausing) *int { return &c.holders }, func(c *pausing) bool { return c.users == 0 })
	if err != nil {
		return false, err
	}
	c.call.Lock()
	if frozen = still(); frozen && !c.paused {
		err = pause(ctx, docker, id)
		c.paused = err == nil
	}
	if frozen = frozen && err == nil; frozen {
		p.mu.Lock()
		c.frozen = true
		p.mu.Unlock()
	}
	c.call.Unlock()
	return frozen, errors.Join(err, p.resume(ctx, docker, id, c, err != nil)) // after an error Docker may yet do it
}

// found says that a container was found paused: it is frozen.
func (p *pauses) found(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = map[string]*pausing{}
	}
	if p.of[id] == nil {
		p.of[id] = &pausing{frozen: true, paused: true, changed: make(chan struct{})}
	}
}

// hold pauses a container until resume is called, by everyone who holds it. It waits while the container is used, and
// while it rests. One that does not run needs no pause.
func (p *pauses) hold(ctx context.Context, docker *client.Client, id string) (resume func() error, err error) {
	c, err := p.enter(ctx, id, func(c *pausing) *int { return &c.holders }, func(c *pausing) bool { return c.users == 0 && !c.rests })
	if err != nil {
		return nil, err
	}
	c.call.Lock()
	p.mu.Lock()
	long := c.frozen // so somebody at Docker may have woken it
	p.mu.Unlock()
	if !c.paused || long {
		if err = pause(ctx, docker, id); err == nil {
			c.paused = true
		}
	}
	c.call.Unlock()
	resume = sync.OnceValue(func() error { return p.resume(ctx, docker, id, c, err != nil) })
	if err != nil {
		_ = resume()                                                        // Docker may yet do it
		return nil, fmt.Errorf("cannot pause container %.12s: %v", id, err) // its class would be taken for the other container's
	}
	return resume, nil
}

// resume lets a container go on if nobody else holds it and it is not frozen. doubtful says that it may be paused although
// that has failed.
func (p *pauses) resume(ctx context.Context, docker *client.Client, id string, c *pausing, doubtful bool) (err error) {
	c.call.Lock()
	defer c.call.Unlock()
	p.mu.Lock()
	last := c.holders == 1 && !c.frozen // whoever comes now waits for the call, and pauses it again
	p.mu.Unlock()
	if last && (c.paused || doubtful) {
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
	if c.holders > 0 && !c.frozen { // else nobody would run
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
		return c.users+c.holders == 0 && !c.frozen && now.Sub(c.at) >= c.surplus
	})
	close(c.changed)
	c.changed = make(chan struct{})
}

// pauseTries is how often pausing is tried: runc does not freeze a version 1 cgroup in which processes appear meanwhile
// ("unable to freeze"), as on a busy machine.
const pauseTries = 5

// pause is content when nothing runs in the container, or it is paused already.
func pause(ctx context.Context, docker *client.Client, id string) error {
	ctx, cancel := context.WithTimeout(ctx, pauseLimit)
	defer cancel()
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval = 50 * time.Millisecond
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, pauseOnce(ctx, docker, id) }, backoff.WithBackOff(wait), backoff.WithMaxTries(pauseTries))
	return err
}

func pauseOnce(ctx context.Context, docker *client.Client, id string) error {
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
