package dockerexec

import (
	"context"
	"fmt"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/quota"
)

// A container for calls is found by its Spec's fingerprint, and so is what waits in the pool. Who
// lets calls in and decides what happens to idle ones is above this package.

// ForCalls returns the containers that are there for calls, and those in the pool, also while they
// are being removed.
func (e *Executor) ForCalls() []*Container {
	e.mu.Lock()
	defer e.mu.Unlock()
	return forCalls(e.all)
}

// ForCallsOf returns those of a user.
func (e *Executor) ForCallsOf(user string) []*Container {
	e.mu.Lock()
	defer e.mu.Unlock()
	return forCalls(e.users[user])
}

func forCalls(of map[*Container]bool) (list []*Container) {
	for c := range of {
		if !c.spec.isDetached() {
			list = append(list, c)
		}
	}
	return list
}

// Add returns the container of a Spec that calls can join. If there is none it registers one, for
// a call with that token. Then the caller has to call Make or Abandon, for which Shutdown waits.
// Without the platform on, the container is stale.
func (e *Executor) Add(
	spec Spec, on Platform, token quota.Token,
) (c *Container, added bool, err error) {
	fingerprint := spec.Fingerprint()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, false, fmt.Errorf(
			"cannot run commands: the service is shutting down: %w", cerrdefs.ErrUnavailable)
	}
	if c = e.calls[fingerprint]; c != nil && c.is(inUse...) {
		e.begins(spec.User)
		return c, false, nil
	}
	c = e.newContainer(spec, fingerprint, "", false)
	c.on, c.token = on, token
	if spec.IsPooled() {
		c.pool = spec.SpoolDir
	}
	e.enlist(c)
	e.calls[fingerprint] = c
	e.work.Add(1) // until Make or Abandon
	e.publish(c, "starting")
	return c, true, nil
}

// Thaw has a container that a call has joined go on, in the background, if it was frozen; one that
// was found so is taken over. from and thawing are Join's. It reports whether it thaws.
func (e *Executor) Thaw(c *Container, from life.State, thawing *life.Thawing) (thawed bool) {
	switch {
	case from != life.Frozen:
		return false
	case thawing == nil:
		if !e.Go(func(context.Context) { e.takeOver(c) }) {
			e.leaveFound(c)
		}
		return false
	}
	e.publish(c, "idle")
	e.Go(func(ctx context.Context) {
		err := c.Thaw(ctx, thawing)
		e.keepsMemory(c)
		if err != nil && ctx.Err() == nil {
			e.Tell(ctx, c, Incident{What: "cannot resume a frozen container", Err: err})
			e.Lose(c)
		}
	})
	return true
}

// Freeze freezes a container if no call needs it. It blocks until that is done, and reports whether
// the container is frozen.
func (e *Executor) Freeze(c *Container) (frozen bool) {
	frozen, err := c.Freeze(e.ctx)
	if err != nil && e.ctx.Err() == nil {
		e.Tell(e.ctx, c, Incident{What: "cannot freeze a container; it keeps running", Err: err})
	}
	if frozen {
		e.publish(c, "frozen")
	}
	return frozen
}

// Retire removes the containers for calls that match: at once if they are unused, else when their
// last call returns. A call waits for a container that is still being made. match is called with
// the registry locked.
func (e *Executor) Retire(match func(*Container, life.Now) bool) {
	var unused []*Container
	e.mu.Lock()
	for _, c := range e.calls {
		if match(c, c.Now()) && c.Do(life.Retire, nil) == life.Removes {
			unused = append(unused, c)
		}
	}
	e.mu.Unlock()
	for _, c := range unused {
		e.Tell(e.ctx, c, Incident{What: "removing container: idle or stale"})
		e.RemoveLater(c)
	}
}

// Leave removes all containers of a user's calls, with what runs in them, and returns when they are
// gone or ctx has ended.
func (e *Executor) Leave(ctx context.Context, user string) error {
	e.mu.Lock()
	var theirs []*Container
	for c := range e.users[user] {
		if !c.spec.isDetached() && !c.is(life.Gone) {
			theirs = append(theirs, c)
		}
	}
	e.mu.Unlock()
	for _, c := range theirs {
		e.expel(c)
	}
	for _, c := range theirs {
		select {
		case <-c.Gone():
		case <-ctx.Done():
			return fmt.Errorf("the containers of user %q do not end: %w", user, context.Cause(ctx))
		}
	}
	return nil
}

// Go does work in the background, whose context ends with Shutdown, which waits for its end. After
// Shutdown it does nothing and returns false.
func (e *Executor) Go(work func(context.Context)) (begun bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.work.Go(func() { work(e.ctx) })
	}
	return !e.closed
}
