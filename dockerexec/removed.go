package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/agent/ask"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/pathmap"
)

// gVisor's kernel keeps open what it has looked up, so the space of a file that is removed from outside stays taken
// until the path is looked up again. So the agents of a user's containers are asked to do that, in the background.

const (
	// lookUpAfter is how long removed paths are gathered, and thawAfter the same for a frozen container, which is
	// thawed for them.
	lookUpAfter = time.Second
	thawAfter   = 30 * time.Second
	// lookUpLimit is how long a container may take for its paths, and lookUpAtOnce is how many are in one message.
	lookUpLimit  = 5 * time.Second
	lookUpAtOnce = 64
	// maxRemoved is how many paths a container may have waiting. One with more is removed when it is unused.
	maxRemoved = 4096
)

// Removed has a user's containers release what was at a path, because it is gone, or is another file now. Both names
// of the path matter: on the host, and inside, if that is below /tmp. It does not block. A container that was paused
// on request releases it when it is resumed.
func (e *Executor) Removed(user, host, inside string) {
	full := map[*container]bool{}
	e.mu.Lock()
	for c := range e.all {
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
		e.lookUpSoon(c)
	}
	e.mu.Unlock()
	if len(full) > 0 {
		e.retire(func(c *container, _ life.Now) bool { return full[c] })
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

// lookUpSoon has a container's removed paths looked up, if there are any and it can be asked; e.mu is held.
func (e *Executor) lookUpSoon(c *container) {
	if len(c.removed) > 0 && !c.lookingUp && !e.closed && c.is(canBeAsked...) {
		c.lookingUp = true
		e.work.Go(func() { e.lookUpRemoved(c) })
	}
}

// lookUpRemoved has a container's removed paths looked up until there are none. What fails is tried again with the
// next removal, or when the container is resumed.
func (e *Executor) lookUpRemoved(c *container) {
	for again := true; again; {
		wait := lookUpAfter
		if c.is(life.Frozen) {
			wait = thawAfter
		}
		select {
		case <-time.After(wait):
		case <-e.ctx.Done():
			return
		}
		e.mu.Lock()
		paths := c.removed
		c.removed = nil
		e.mu.Unlock()
		if !c.is(canBeAsked...) {
			return
		}
		left := e.lookUp(c, paths)
		e.mu.Lock()
		again = len(left) == 0 && len(c.removed) > 0
		c.removed, c.lookingUp = append(left, c.removed...), again
		e.mu.Unlock()
	}
}

// lookUp has paths looked up in a container, and returns those for which that failed.
func (e *Executor) lookUp(c *container, paths []string) (left []string) {
	ask := e.askPersistent
	if c.sess != nil {
		done, err := c.Visit(e.ctx)
		if err != nil {
			return paths // whoever uses it next finds out
		}
		defer done()
		e.mu.Lock()
		e.keepsMemory(c)
		e.mu.Unlock()
		ask = func(ctx context.Context, c *container, paths []string) error { return c.sess.lookUp(ctx, paths) }
	} else if !c.spec.isPersistent() || c.is(life.Frozen) {
		return paths
	}
	ctx, cancel := context.WithTimeout(e.ctx, lookUpLimit)
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

// lookUp asks the agent to look paths up, and returns when it has.
func (s *session) lookUp(ctx context.Context, paths []string) error {
	stream, err := openStream(ctx, s.mux)
	if err != nil {
		return err
	}
	return askOnce(ctx, stream, wire.KindStart, wire.Start{LookUp: paths}, wire.KindExit, &wire.Exit{})
}

// askPersistent is session.lookUp for a container that runs without the service.
func (e *Executor) askPersistent(ctx context.Context, c *container, paths []string) error {
	if c.spec.Lasting == "" {
		return e.lookUpByExec(ctx, c, paths)
	}
	stream, err := e.AskLasting(ctx, c.ID())
	if err != nil {
		return err
	}
	return askOnce(ctx, stream, wire.KindRequest, ask.Request{Do: ask.LookUp, Paths: paths}, wire.KindAnswer, &ask.Answer{})
}

// askOnce sends a message on a stream of its own and waits for the answer.
func askOnce(ctx context.Context, stream ask.Stream, kind wire.Kind, message any, answers wire.Kind, answer any) error {
	defer context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Unix(1, 0)) })()
	err := wire.WriteMessage(stream, kind, message)
	if err == nil {
		err = wire.ReadMessage(stream, answers, answer)
	}
	if err != nil {
		PortConn{Stream: stream}.Abort()
		return err
	}
	return stream.Close()
}

// lookUpByExec starts an agent for that, as the first process of a durable process's container is not connected.
func (e *Executor) lookUpByExec(ctx context.Context, c *container, paths []string) error {
	done, err := c.Use(ctx)
	if err != nil {
		return err
	}
	defer done()
	out, err := e.engine.Run(ctx, c.ID(), specs.Process{Args: append([]string{agentPath, "look-up"}, paths...), Cwd: "/"})
	if ctx.Err() != nil { // the tenant may have used up what it takes
		return errors.Join(context.Cause(ctx), e.engine.AbortExecs(c.ID()))
	}
	if err == nil && out.ExitCode != 0 {
		err = fmt.Errorf("the agent failed with %d", out.ExitCode)
	}
	return err
}
