package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/engine"
)

// creationLimit bounds making a container, from the first question to the agent's greeting.
const creationLimit = 2 * time.Minute

// establish sets c's id, spool and session. After an error nothing is left of the container, except that at Shutdown
// an adopted one stays. The error is errLost if the container has ended by itself or was ended by hand.
func (e *Executor) establish(ctx context.Context, c *container) (err error) {
	adopted := c.id != ""
	defer func() {
		if err != nil && (!adopted || e.ctx.Err() == nil) { // otherwise it is left to the next service
			err = errors.Join(err, e.dispose(c))
		}
	}()
	if err := e.prepareMounts(c); err != nil {
		return err
	}
	if !adopted {
		if err := e.start(ctx, c); err != nil {
			return err
		}
	}
	attending := e.watchEnd(ctx, c)
	done, err := e.pauses.use(attending, e.engine, c.id)
	if err != nil {
		return err
	}
	defer done()
	if c.spec.isAlone() {
		err = e.launch(attending, c)
	} else {
		err = e.connect(attending, c)
	}
	// In an adopted container the previous service's agent may still be ending, and it ends all that begins there.
	if err != nil && (adopted || e.isLost(attending, c)) {
		return fmt.Errorf("%w (%v)", errLost, err)
	}
	return err
}

// prepareMounts prepares the host for a container, once.
func (e *Executor) prepareMounts(c *container) error {
	if !c.isPrepared && c.prepareErr == nil {
		c.prepared, c.prepareErr = e.cfg.Mounts.Prepare(c.spec)
		c.isPrepared = c.prepareErr == nil
	}
	return c.prepareErr
}

// connect opens network access and the session of a running container.
func (e *Executor) connect(ctx context.Context, c *container) error {
	if err := e.bind(ctx, c); err != nil {
		return err
	}
	spool, err := openSpool(c.spool)
	if err != nil {
		return err
	}
	sess, err := openSession(ctx, e.docker, c.id, c.first, spool)
	if err != nil {
		spool.close()
		return err
	}
	c.sess, c.first = sess, nil
	if err := e.verify(ctx, c, func(targets []string) ([]string, error) { return sess.accessTimes(ctx, targets) }); err != nil {
		sess.close()
		spool.close()
		return err
	}
	sess.ahead = &e.ahead
	return nil
}

// start makes the container and starts it.
func (e *Executor) start(ctx context.Context, c *container) error {
	failed := false // the runtime has
	for try := 1; ; try++ {
		addr, err := e.join(ctx, c)
		if err != nil {
			return err
		}
		mounts, err := e.create(ctx, c, addr)
		if err != nil {
			return err
		}
		if !c.spec.isAlone() {
			c.first, err = attach(ctx, e.docker, c.id)
		}
		if err == nil {
			err = e.startExclusively(ctx, c, mounts)
		}
		if err == nil {
			return nil
		}
		c.detach()
		if cerrdefs.IsNotFound(err) || cerrdefs.IsConflict(err) { // it was removed, or is about to be
			return fmt.Errorf("%w (cannot start: %v)", errLost, err)
		}
		switch {
		case !failed && errors.Is(err, engine.ErrRuntimeDied):
			failed = true
			e.tell(ctx, c, Incident{What: "gVisor failed to start a container; it is made once more", Level: zerolog.WarnLevel, Err: err})
		// Someone may have put another container on our network, at the address that came next.
		case !addr.IsValid() || try >= addressTries || !errors.Is(err, engine.ErrAddressTaken):
			return err
		}
		if err := e.remove(c.id, c.spool); err != nil {
			return err
		}
		e.leave(c)
		e.name(c, "")
	}
}

// name sets the id of a container that is being made, before Docker is asked to start it.
func (e *Executor) name(c *container, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c.id = id
}

// detach closes the connection to the first process of a container that has no session.
func (c *container) detach() {
	if c.first != nil {
		_ = c.first.Close()
		c.first = nil
	}
}

// addressTries is how many addresses are tried, each of which someone else may have.
const addressTries = 5

// create makes the container and its spool, and returns its mounts. If a container of ours has the name, that
// container was given up, so it is removed first.
func (e *Executor) create(ctx context.Context, c *container, addr netip.Addr) ([]specs.Mount, error) {
	if err := c.spec.makeMasks(); err != nil {
		return nil, err
	}
	spool := ""
	if !c.spec.isAlone() {
		var err error
		if spool, err = makeSpool(c.spec); err != nil {
			return nil, err
		}
	}
	net := e.wiring(c)
	net.addr = addr
	wanted := c.spec.engineSpec(spool, c.prepared, net)
	wanted.CgroupParent = e.cfg.CgroupParent
	// Docker carries on when its caller leaves, and nothing would track what it then makes.
	creating, cancel := withGrace(ctx, createGrace)
	defer cancel()
	for wait := patience(); ; {
		id, err := e.engine.Create(creating, wanted)
		if err == nil {
			e.name(c, id)
			c.spool = spool
			return wanted.Mounts, nil
		}
		if !cerrdefs.IsConflict(err) {
			return nil, errors.Join(fmt.Errorf("cannot create: %w", err), removeSpool(spool))
		}
		if err := e.clearName(ctx, wanted.Name); err != nil {
			return nil, errors.Join(err, removeSpool(spool))
		}
		select {
		case <-time.After(wait.NextBackOff()): // Docker may have given the name to a container that it does not show yet
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("cannot create: Docker keeps the name for another container: %w (%v)", context.Cause(ctx), err), removeSpool(spool))
		}
	}
}

// createGrace is how long Docker may take to create a container that is no longer wanted.
const createGrace = 10 * time.Second

// withGrace returns a context that ends d after ctx does.
func withGrace(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(d, cancel) })
	return longer, func() { stop(); cancel() }
}

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
		return fmt.Errorf("the name %s is taken by a container that is not this service's: rename or remove it", name)
	}
	return e.removeFound(found.ID, spoolOf(found.Mounts))
}

// dispose removes a container with all that it had on the host. It is called once for each.
func (e *Executor) dispose(c *container) error {
	e.mu.Lock()
	e.stopWatching(c)
	if e.processes[c.id] == c {
		delete(e.processes, c.id)
	}
	e.mu.Unlock()
	c.detach()
	c.asks.close()
	var faults []error
	var running error
	if c.id != "" {
		running = e.removeContainer(c.id)
		faults = append(faults, running, removeSpool(c.spool))
	}
	e.leave(c)
	// Removing a mount point on the host uncovers what it hides, so it stays while programs may run.
	if c.isPrepared && running == nil {
		e.cfg.Mounts.Release(c.spec)
	}
	if c.pool != "" {
		faults = append(faults, e.unbind(c.id), e.removePooled(c.pool))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), removalLimit)
	defer cancel()
	return errors.Join(append(faults, e.removeTmp(ctx, c.tmpName()))...)
}

// make makes a container when its turn has come.
func (e *Executor) make(c *container, log *zerolog.Logger) {
	done, err := e.admit(c)
	if err != nil {
		c.err = fmt.Errorf("cannot prepare a container for user %q: %w", c.spec.User, err)
		e.giveUp(c)
		return
	}
	defer done()
	e.prepare(c, log)
}

// giveUp drops a container that could not be made and wakes the callers that wait for it: c.err says why.
func (e *Executor) giveUp(c *container) {
	e.mu.Lock()
	e.drop(c)
	e.mu.Unlock()
	close(c.ready)
	e.finishRemoval(c)
}

// prepare makes a container or, when c.id is set, takes one over, and opens the agent's session. log is the log of the
// call that it does this for.
func (e *Executor) prepare(c *container, log *zerolog.Logger) {
	ctx, cancel := context.WithTimeout(log.WithContext(e.ctx), creationLimit)
	defer cancel()
	start := time.Now()
	adopted := c.id != ""
	unused, err := e.makeReady(ctx, c)
	if err != nil {
		e.tell(ctx, c, Incident{What: "container failed", Level: zerolog.ErrorLevel, Err: err})
		c.err = fmt.Errorf("cannot prepare a container for user %q: %s", c.spec.User, c.spec.withoutHostPaths(e.engine.Explain(err).Error()))
		if errors.Is(err, errLost) {
			c.err = lostError{c.err}
		} else if refused, is := errors.AsType[refusedStart](err); is {
			c.err = refused.error
		}
		e.giveUp(c)
		return
	}
	if c.sess != nil {
		e.watchSession(c, unused)
	}
	e.tell(ctx, c, Incident{What: "container ready", Runtime: c.spec.Runtime(), Adopted: adopted, Took: time.Since(start)})
}

// makeReady establishes a container, makes it available to calls, and reports whether no call wants it yet. No call
// gets a container that was lost meanwhile.
func (e *Executor) makeReady(ctx context.Context, c *container) (unused bool, err error) {
	if err := e.establish(ctx, c); err != nil {
		return false, err
	}
	e.mu.Lock()
	if !c.lost {
		defer e.mu.Unlock()
		e.stopWatching(c)
		close(c.ready) // from here on ended gives it up
		e.publish(c, "idle")
		e.lookUpSoon(c) // what was removed before
		return c.users == 0, nil
	}
	e.mu.Unlock()
	c.hangUp()
	if c.sess != nil {
		c.sess.spool.close()
	}
	return false, errors.Join(errLost, e.dispose(c))
}

// watchSession gives a container up when its session ends. In an unused container it has a shell started ahead.
func (e *Executor) watchSession(c *container, unused bool) {
	if unused && e.ahead.Load() {
		_ = c.sess.tell(wire.Control{Ahead: true}) // if that fails, it ends the session
	}
	e.work.Go(func() {
		<-c.sess.broken()
		c.sess.spool.close()
		e.forget(c)
	})
}
