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
func (h *host) ForCalls() (list []*Container) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.all {
		if !c.spec.isDetached() {
			list = append(list, c)
		}
	}
	return list
}

// Add returns the container of a Spec that calls can join. If there is none it registers one, for
// a call with that token. Then the caller has to call Make or Abandon, for which Shutdown waits.
// Without the platform on, the container is stale.
func (h *host) Add(
	spec Spec, on Platform, token quota.Token,
) (c *Container, added bool, err error) {
	fingerprint := spec.Fingerprint()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, false, fmt.Errorf(
			"cannot run commands: the service is shutting down: %w", cerrdefs.ErrUnavailable)
	}
	if c = h.calls[fingerprint]; c != nil && c.is(inUse...) {
		return c, false, nil
	}
	c = h.newContainer(spec, fingerprint, "", false)
	c.on, c.token = on, token
	if spec.IsPooled() {
		c.pool = spec.SpoolDir
	}
	h.all[c], h.calls[fingerprint] = true, c
	h.work.Add(1) // until Make or Abandon
	h.publish(c, "starting")
	return c, true, nil
}

// Wake has a container that a call has joined go on, in the background, if it was frozen: from and
// thawing are Join's. It reports whether it is thawed.
func (h *host) Wake(c *Container, from life.State, thawing *life.Thawing) (thawed bool) {
	switch {
	case from != life.Frozen:
		return false
	case thawing == nil:
		h.Go(func(context.Context) { h.takeOver(c) })
		return false
	}
	h.publish(c, "idle")
	h.Go(func(ctx context.Context) {
		err := c.Thaw(ctx, thawing)
		h.keepsMemory(c)
		if err != nil && ctx.Err() == nil {
			h.Tell(ctx, c, Incident{What: "cannot resume a frozen container", Err: err})
			h.Lose(c)
		}
	})
	return true
}

// Freeze freezes a container if no call needs it. It blocks until that is done, and reports whether
// the container is frozen.
func (h *host) Freeze(c *Container) (frozen bool) {
	frozen, err := c.Freeze(h.ctx)
	if err != nil && h.ctx.Err() == nil {
		h.Tell(h.ctx, c, Incident{What: "cannot freeze a container; it keeps running", Err: err})
	}
	if frozen {
		h.publish(c, "frozen")
	}
	return frozen
}

// Retire removes the containers for calls that match: at once if they are unused, else when their
// last call returns. A call waits for a container that is still being made. match is called with
// the registry locked.
func (h *host) Retire(match func(*Container, life.Now) bool) {
	var unused []*Container
	h.mu.Lock()
	for _, c := range h.calls {
		if match(c, c.Now()) && c.Do(life.Retire, nil) == life.Removes {
			unused = append(unused, c)
		}
	}
	h.mu.Unlock()
	for _, c := range unused {
		h.Tell(h.ctx, c, Incident{What: "removing container: idle or stale"})
		h.RemoveLater(c)
	}
}

// Leave removes all containers of a user's calls, with what runs in them, and returns when they are
// gone or ctx has ended.
func (h *host) Leave(ctx context.Context, user string) error {
	h.mu.Lock()
	var theirs []*Container
	for c := range h.all {
		if c.spec.User == user && !c.spec.isDetached() && !c.is(life.Gone) {
			theirs = append(theirs, c)
		}
	}
	h.mu.Unlock()
	for _, c := range theirs {
		h.expel(c)
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
func (h *host) Go(work func(context.Context)) (begun bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.work.Go(func() { work(h.ctx) })
	}
	return !h.closed
}
