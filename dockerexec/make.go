package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/dockerexec/mounts"
	"github.com/daycare-run/sandbox/dockerexec/networks"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/engine"
)

// A container has one maker, from Begin to Succeed. If it comes to Leaving meanwhile, or to its
// end, the maker's context ends, and the maker removes what there is.

// creationLimit bounds making a container, from the first question to the agent's greeting.
const creationLimit = 2 * time.Minute

// Make makes a container that was added, in its turn. After an error nothing is left of it; Life
// says why. ctx has the log of the call that it is made for.
func (e *Executor) Make(ctx context.Context, c *Container) {
	defer e.work.Done()
	if c.Do(life.Begin, nil) == life.Refused {
		e.abandon(c, context.Cause(c.Making()))
		return
	}
	e.prepare(e.logOf(ctx), c)
}

// Abandon ends a container that was added and is not to be made: nothing is left of it before its
// callers learn why.
func (e *Executor) Abandon(c *Container, why error) {
	defer e.work.Done()
	e.abandon(c, why)
}

// prepare makes a container for calls, or takes one over that was found.
func (e *Executor) prepare(log *zerolog.Logger, c *Container) {
	ctx, cancel := context.WithTimeout(log.WithContext(e.ctx), creationLimit)
	defer cancel()
	begun, adopted := time.Now(), c.ID() != ""
	err := e.establish(ctx, c, adopted)
	if err == nil && c.Do(life.Succeed, nil) == life.Refused {
		err = ErrLost
	}
	if err != nil {
		e.notMade(ctx, c, adopted, err)
		return
	}
	e.publish(c, "idle")
	e.lookUpSoon(c)
	if c.sess != nil {
		e.watchSession(c)
	}
	e.work.Go(func() { e.watch(c) })
	e.leaveAtShutdown(c)
	e.Tell(ctx, c, Incident{What: "container ready", Runtime: c.spec.Runtime(), Adopted: adopted,
		Took: time.Since(begun)})
}

// notMade ends the making of a container for calls: its callers learn why, and nothing is left of
// it. But at Shutdown, one that was to be taken over is left to the next service.
func (e *Executor) notMade(ctx context.Context, c *Container, adopted bool, err error) {
	if adopted && e.ctx.Err() != nil {
		c.hangUp()
		e.leaveFound(c)
		return
	}
	e.Tell(ctx, c, Incident{What: "container failed", Level: zerolog.ErrorLevel, Err: err})
	why := fmt.Errorf("cannot prepare a container for user %q: %s", c.spec.User,
		c.spec.withoutHostPaths(e.engine.Explain(err).Error()))
	if errors.Is(err, ErrLost) {
		why = lostError{why}
	} else if refused, is := errors.AsType[refusedStart](err); is {
		why = refused.error
	}
	e.abandon(c, why)
}

// leaveFound leaves a container that was to be taken over to the next service: its callers learn
// that this one stops.
func (e *Executor) leaveFound(c *Container) {
	if c.Do(life.Release, ErrStopping) == life.Refused {
		c.Do(life.Fail, ErrStopping)
	}
}

// abandon ends the making of a container: nothing is left of it before its callers learn why.
func (e *Executor) abandon(c *Container, why error) {
	c.Do(life.Remove, why) // no call gets it from now on
	there, err := e.dispose(c)
	if err != nil {
		e.Tell(e.ctx, c, Incident{What: "cannot remove container", Err: err})
	}
	c.Do(life.Fail, why)
	if there {
		e.RemoveLater(c)
	} else {
		e.unlist(c)
	}
}

// establish sets c's id, spool and session. The error is ErrLost if the container has ended by
// itself or was ended by hand.
func (e *Executor) establish(ctx context.Context, c *Container, adopted bool) (err error) {
	defer func() {
		if _, refused := errors.AsType[refusedStart](err); err != nil && !refused &&
			c.is(life.Leaving, life.Ended) {
			err = fmt.Errorf("%w (%v)", ErrLost, err)
		}
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.Making(), func() {
		cancel(fmt.Errorf("%w (%v)", ErrLost, context.Cause(c.Making())))
	})()
	if err := c.mounts.prepare(e.cfg.Mounts, c.spec); err != nil {
		return err
	}
	if !adopted {
		if err := e.start(ctx, c); err != nil {
			return err
		}
		e.follow(c)
	}
	done, err := c.Use(ctx)
	if err != nil {
		return errors.Join(ErrLost, err)
	}
	defer done()
	if !c.spec.hasSession() {
		err = e.launch(ctx, c)
	} else {
		err = e.connect(ctx, c)
	}
	// In an adopted container the previous service's agent may still be ending, and it ends all
	// that begins there.
	if err != nil && (adopted || errors.Is(err, networks.ErrRecreated) || e.isLost(ctx, c)) {
		return fmt.Errorf("%w (%v)", ErrLost, err)
	}
	return err
}

// connect opens network access and the session of a running container, both at once: the kernel
// takes 15 ms to move an interface, and the agent as long to answer. No command begins before both
// are done.
func (e *Executor) connect(ctx context.Context, c *Container) error {
	opening, giveUp := context.WithCancel(ctx)
	defer giveUp()
	bound := make(chan error, 1)
	go func() {
		_, err := c.net.Bind(ctx, c.ID())
		if err != nil {
			giveUp()
		}
		bound <- err
	}()
	sess, err := session.Open(opening, c.first, e.starter(c.ID()), c.spool)
	if err == nil {
		c.first = nil
	}
	if unbound := <-bound; unbound != nil {
		if sess != nil {
			sess.Close()
		}
		return unbound
	}
	if err != nil {
		return err
	}
	if err := e.guard.Verify(ctx, c.Life, c.toVerify(), func(targets []string) ([]string, error) {
		return sess.AccessTimes(ctx, targets)
	}); err != nil {
		sess.Close()
		return err
	}
	c.sess = sess
	return nil
}

// start makes the container and starts it.
func (e *Executor) start(ctx context.Context, c *Container) error {
	failed := false // gVisor has
	for try := 1; ; try++ {
		if err := e.join(ctx, c); err != nil {
			return err
		}
		wanted, err := e.create(ctx, c)
		if err != nil {
			return err
		}
		if c.first, err = e.attach(ctx, c.ID()); err == nil {
			err = e.startExclusively(ctx, c, wanted)
		}
		if err == nil {
			return nil
		}
		c.forgetFirst()
		// it was removed, or is about to be
		if cerrdefs.IsNotFound(err) || cerrdefs.IsConflict(err) {
			return fmt.Errorf("%w (cannot start: %v)", ErrLost, err)
		}
		switch {
		case !failed && errors.Is(err, engine.ErrRuntimeDied):
			failed = true
			e.Tell(ctx, c,
				Incident{What: "gVisor failed to start a container; it is made once more",
					Level: zerolog.WarnLevel, Err: err})
		// Someone may have put another container on our network, at the address that came next.
		case c.net == nil || try >= addressTries || !errors.Is(err, engine.ErrAddressTaken):
			return err
		}
		if err := errors.Join(e.removeContainer(c.ID()), removeSpool(c.spool)); err != nil {
			return err
		}
		c.net.Leave()
		c.Name("")
	}
}

// addressTries is how many addresses are tried, each of which someone else may have.
const addressTries = 5

// create makes the container and its spool, and returns its mounts. If a container of ours has the
// name, that container was given up, so it is removed first.
func (e *Executor) create(ctx context.Context, c *Container) ([]specs.Mount, error) {
	if err := c.spec.makeMasks(); err != nil {
		return nil, err
	}
	spool := ""
	if c.spec.hasSession() {
		var err error
		if spool, err = makeSpool(c.spec); err != nil {
			return nil, err
		}
	}
	wanted := c.spec.engineSpec(spool, c.mounts.Prepared, c.net.Wiring())
	wanted.CgroupParent = e.cfg.CgroupParent
	// Docker carries on when its caller leaves, and nothing would track what it then makes.
	creating, cancel := session.WithGrace(ctx, createGrace)
	defer cancel()
	for wait := engine.Patience(); ; {
		id, err := e.engine.Create(creating, wanted)
		if err == nil {
			c.Name(id)
			c.spool = spool
			e.mu.Lock()
			e.writesTo(c, mounts.Writes(wanted.Mounts))
			e.mu.Unlock()
			return wanted.Mounts, nil
		}
		if !cerrdefs.IsConflict(err) {
			return nil, errors.Join(fmt.Errorf("cannot create: %w", err), removeSpool(spool))
		}
		if err := e.clearName(ctx, wanted.Name); err != nil {
			return nil, errors.Join(err, removeSpool(spool))
		}
		select {
		case <-time.After(wait.NextBackOff()):
			// Docker may have given the name to a container that it does not show yet
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf(
				"cannot create: Docker keeps the name for another container: %w (%v)",
				context.Cause(ctx), err), removeSpool(spool))
		}
	}
}

// createGrace is how long Docker may take to create a container that is no longer wanted.
const createGrace = 10 * time.Second

// clearName removes the container of ours that has a name, if Docker shows one.
func (e *Executor) clearName(ctx context.Context, name string) error {
	found, err := e.engine.Inspect(ctx, name)
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot inspect %s: %w", name, err)
	}
	if found.Labels[labelInstance] != e.cfg.Instance {
		return fmt.Errorf(
			"the name %s is taken by a container that is not this service's: rename or remove it",
			name)
	}
	return e.removeFound(found.ID, spoolOf(found.Mounts))
}

// watchSession gives a container up when its session ends. In one that no call wants yet it has a
// shell started ahead.
func (e *Executor) watchSession(c *Container) {
	if c.Now().Calls == 0 && e.ahead.Load() {
		c.sess.StartAhead()
	}
	e.work.Go(func() {
		<-c.sess.Broken()
		e.Lose(c)
	})
}
