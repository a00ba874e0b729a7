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
	// lookUpAfter is how long removed paths are gathered, hearAfter the same for a container in which
	// somebody may watch files, and thawAfter for a frozen container, which is thawed for them.
	lookUpAfter = time.Second
	hearAfter   = 100 * time.Millisecond
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
func (e *Executor) Removed(user, host, inside string) {
	full := map[*Container]bool{}
	var asked []*Container
	e.mu.Lock()
	for c := range e.users[user] {
		if !c.spec.Platform.GVisor || !c.is(inUse...) {
			continue
		}
		for _, path := range c.spec.placesOf(host, inside) {
			if c.hears.knows(path) {
				continue
			}
			if !slices.Contains(c.removed, path) {
				c.removed = append(c.removed, path)
			}
		}
		if more := len(c.removed) - maxRemoved; more > 0 {
			c.removed, full[c] = slices.Delete(c.removed, 0, more), true
		}
		asked = append(asked, c)
	}
	e.mu.Unlock()
	for _, c := range asked {
		e.lookUpSoon(c)
	}
	if len(full) > 0 {
		e.Retire(func(c *Container, _ life.Now) bool { return full[c] })
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

// lookUpSoon has a container's removed paths looked up, if there are any and it can be asked. So it
// is called when there are more, and when the container has been made or is resumed.
func (e *Executor) lookUpSoon(c *Container) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if (len(c.removed) > 0 || !c.hears.isEmpty()) && !c.lookingUp && !e.closed && c.is(canBeAsked...) {
		c.lookingUp = true
		e.work.Go(func() { e.lookUpRemoved(c) })
	}
}

// lookUpRemoved has a container's removed paths looked up until there are none. What fails is tried
// again with the next removal, or when the container is resumed.
func (e *Executor) lookUpRemoved(c *Container) {
	for again := true; again; {
		wait := lookUpAfter
		if c.is(life.Frozen) {
			wait = thawAfter
		} else if c.mayWatch() {
			wait = hearAfter
		}
		select {
		case <-time.After(wait):
		case <-e.ctx.Done():
			return
		}
		e.mu.Lock()
		if !c.is(canBeAsked...) {
			c.lookingUp = false
			e.mu.Unlock()
			return
		}
		paths := c.removed
		c.removed = nil
		changed, others := c.hears.own, c.hears.others
		c.hears.own, c.hears.others = News{}, News{}
		e.mu.Unlock()
		left := e.lookUp(c, session.LookUp{Paths: paths})
		if c.mayWatch() { // what fails is not heard
			_ = e.lookUp(c, changed.lookUp(false))
			_ = e.lookUp(c, others.lookUp(true))
		}
		e.mu.Lock()
		again = len(left) == 0 && (len(c.removed) > 0 || !c.hears.isEmpty())
		c.removed, c.lookingUp = append(left, c.removed...), again
		e.mu.Unlock()
	}
}

// lookUp has paths looked up in a container, and returns those for which that failed.
func (e *Executor) lookUp(c *Container, all session.LookUp) (left []string) {
	paths := all.Paths
	if len(paths) == 0 {
		return nil
	}
	select {
	case <-c.Settled():
	default: // it was found paused, and may be being taken over
		return paths
	}
	ask := e.askDetached
	if c.sess != nil {
		done, err := c.Visit(e.ctx)
		if err != nil {
			return paths // whoever uses it next finds out
		}
		defer done()
		e.keepsMemory(c)
		ask = func(ctx context.Context, c *Container, some session.LookUp) error {
			return c.sess.LookUp(ctx, some)
		}
	} else if !c.spec.isDetached() || c.is(life.Frozen) {
		return paths
	}
	ctx, cancel := context.WithTimeout(e.ctx, lookUpLimit)
	defer cancel()
	for some := range slices.Chunk(paths, lookUpAtOnce) {
		next := session.LookUp{Paths: some, Others: all.Others}
		for _, path := range all.Modified {
			if slices.Contains(some, path) {
				next.Modified = append(next.Modified, path)
			}
		}
		if err := ask(ctx, c, next); err != nil {
			return paths
		}
		paths = paths[len(some):]
	}
	return nil
}

// askDetached is Session.LookUp for a container that runs without the service.
func (e *Executor) askDetached(ctx context.Context, c *Container, some session.LookUp) error {
	asking, cancel := context.WithTimeout(ctx, lookUpLimit/2)
	defer cancel()
	stream, err := e.AskPersistent(asking, c.ID())
	if err == nil {
		_, err = session.AskOnce(asking, stream,
			control.Request{Do: control.LookUp, Paths: some.Paths, Modified: some.Modified, Others: some.Others})
	}
	if err != nil && c.spec.Persistent == "" && !some.Others {
		return e.lookUpByExec(ctx, c, some.Paths)
	}
	return err
}

// lookUpByExec starts an agent for that, as the first process of a durable process's container may
// be of a version that takes no requests.
func (e *Executor) lookUpByExec(ctx context.Context, c *Container, paths []string) error {
	done, err := c.Use(ctx)
	if err != nil {
		return err
	}
	defer done()
	out, err := e.engine.Run(ctx, c.ID(),
		specs.Process{Args: append([]string{session.AgentPath, "look-up"}, paths...), Cwd: "/"})
	if ctx.Err() != nil { // the tenant may have used up what it takes
		return errors.Join(context.Cause(ctx), e.engine.AbortExecs(c.ID()))
	}
	if err == nil && out.ExitCode != 0 {
		err = fmt.Errorf("the agent failed with %d", out.ExitCode)
	}
	return err
}
