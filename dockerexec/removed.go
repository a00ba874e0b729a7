package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/pathmap"
)

// gVisor's kernel keeps open what it has looked up, so the space of a file that is removed from
// outside stays taken until the path is looked up again. So the agents of a user's containers are
// asked to do that, in the background.

const (
	// lookUpAfter is how long removed paths are gathered, and thawAfter the same for a frozen
	// container, which is thawed for them.
	lookUpAfter = time.Second
	thawAfter   = 30 * time.Second
	// lookUpLimit is how long a container may take for its paths, and lookUpAtOnce is how many are
	// in one message.
	lookUpLimit  = 5 * time.Second
	lookUpAtOnce = 64
	// maxRemoved is how many paths a container may have waiting. One with more is removed when it
	// is unused.
	maxRemoved = 4096
)

// Removed has a user's containers release what was at a path, because it is gone, or is another
// file now. Both names of the path matter: on the host, and inside, if that is below /tmp. It does
// not block. A container that was paused on request releases it when it is resumed.
func (h *host) Removed(user, host, inside string) {
	full := map[*Container]bool{}
	h.mu.Lock()
	for c := range h.all {
		if c.spec.User != user || !c.spec.Platform.GVisor || !c.is(inUse...) {
			continue
		}
		for _, path := range c.spec.placesOf(host, inside) {
			if !slices.Contains(c.removed, path) {
				c.removed = append(c.removed, path)
			}
		}
		if more := len(c.removed) - maxRemoved; more > 0 {
			c.removed, full[c] = slices.Delete(c.removed, 0, more), true
		}
		h.lookUpSoon(c)
	}
	h.mu.Unlock()
	if len(full) > 0 {
		h.Retire(func(c *Container, _ life.Now) bool { return full[c] })
	}
}

// placesOf returns where a container sees a path of the host, unless that is hidden there.
func (s Spec) placesOf(host, inside string) (places []string) {
	if pathmap.Within(inside, "/tmp") {
		return []string{inside}
	}
	for _, m := range s.Mounts {
		rest, within := pathmap.CutDir(host, m.Source)
		place := m.Target
		if rest != "" {
			place += "/" + rest
		}
		hidden := func(mask Mask) bool {
			return pathmap.Within(mask.Target, m.Target) && pathmap.Within(place, mask.Target)
		}
		if within && !slices.ContainsFunc(s.Masks, hidden) {
			places = append(places, place)
		}
	}
	return places
}

// canBeAsked are the states in which an agent can be asked.
var canBeAsked = []life.State{life.Ready, life.Draining, life.Frozen}

// lookUpSoon has a container's removed paths looked up, if there are any and it can be asked; e.mu
// is held.
func (h *host) lookUpSoon(c *Container) {
	if len(c.removed) > 0 && !c.lookingUp && !h.closed && c.is(canBeAsked...) {
		c.lookingUp = true
		h.work.Go(func() { h.lookUpRemoved(c) })
	}
}

// lookUpRemoved has a container's removed paths looked up until there are none. What fails is tried
// again with the next removal, or when the container is resumed.
func (h *host) lookUpRemoved(c *Container) {
	for again := true; again; {
		wait := lookUpAfter
		if c.is(life.Frozen) {
			wait = thawAfter
		}
		select {
		case <-time.After(wait):
		case <-h.ctx.Done():
			return
		}
		h.mu.Lock()
		if !c.is(canBeAsked...) {
			c.lookingUp = false
			h.mu.Unlock()
			return
		}
		paths := c.removed
		c.removed = nil
		h.mu.Unlock()
		left := h.lookUp(c, paths)
		h.mu.Lock()
		again = len(left) == 0 && len(c.removed) > 0
		c.removed, c.lookingUp = append(left, c.removed...), again
		h.mu.Unlock()
	}
}

// lookUp has paths looked up in a container, and returns those for which that failed.
func (h *host) lookUp(c *Container, paths []string) (left []string) {
	select {
	case <-c.Settled():
	default: // it was found paused, and may be being taken over
		return paths
	}
	ask := h.askDetached
	if c.sess != nil {
		done, err := c.Visit(h.ctx)
		if err != nil {
			return paths // whoever uses it next finds out
		}
		defer done()
		h.keepsMemory(c)
		ask = func(ctx context.Context, c *Container, paths []string) error {
			return c.sess.LookUp(ctx, paths)
		}
	} else if !c.spec.isDetached() || c.is(life.Frozen) {
		return paths
	}
	ctx, cancel := context.WithTimeout(h.ctx, lookUpLimit)
	defer cancel()
	for len(paths) > 0 {
		next := paths[:min(len(paths), lookUpAtOnce)]
		if err := ask(ctx, c, next); err != nil {
			return paths
		}
		paths = paths[len(next):]
	}
	return nil
}

// askDetached is Session.LookUp for a container that runs without the service.
func (h *host) askDetached(ctx context.Context, c *Container, paths []string) error {
	if c.spec.Persistent == "" {
		return h.lookUpByExec(ctx, c, paths)
	}
	stream, err := h.AskPersistent(ctx, c.ID())
	if err != nil {
		return err
	}
	_, err = session.AskOnce(ctx, stream, control.Request{Do: control.LookUp, Paths: paths})
	return err
}

// lookUpByExec starts an agent for that, as the first process of a durable process's container is
// not connected.
func (h *host) lookUpByExec(ctx context.Context, c *Container, paths []string) error {
	done, err := c.Use(ctx)
	if err != nil {
		return err
	}
	defer done()
	out, err := h.engine.Run(ctx, c.ID(),
		specs.Process{Args: append([]string{session.AgentPath, "look-up"}, paths...), Cwd: "/"})
	if ctx.Err() != nil { // the tenant may have used up what it takes
		return errors.Join(context.Cause(ctx), h.engine.AbortExecs(c.ID()))
	}
	if err == nil && out.ExitCode != 0 {
		err = fmt.Errorf("the agent failed with %d", out.ExitCode)
	}
	return err
}
