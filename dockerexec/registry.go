package dockerexec

import (
	"context"
	"errors"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec/life"
)

// The registry has every container of this service's from the wish for it to its last trace. A
// container ends by one of four verbs. To stop it is to end its programs; it stays until it is
// removed. To remove it is to end its programs and leave nothing of it. To evict it is to remove it
// because nobody needs it and another one needs its place. To release it is to leave it to the next
// service.

// inUse are the states of containers that use what they have, or will.
var inUse = []life.State{life.Queued, life.Starting, life.Ready, life.Draining, life.Frozen}

// inState returns the containers in one of the states.
func (e *Executor) inState(states ...life.State) (list []*Container) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.all {
		if c.is(states...) {
			list = append(list, c)
		}
	}
	return list
}

// enlist adds a container to the registry. e.mu is held.
func (e *Executor) enlist(c *Container) {
	e.all[c] = true
	if e.users[c.spec.User] == nil {
		e.users[c.spec.User] = map[*Container]bool{}
	}
	e.users[c.spec.User][c] = true
	if len(e.users[c.spec.User]) >= 2 {
		e.several[c.spec.User] = true
		e.begins(c.spec.User)
	}
	e.indexWrites(c)
}

// strike takes a container out of what enlist adds it to. e.mu is held.
func (e *Executor) strike(c *Container) {
	delete(e.all, c)
	e.forgetWrites(c)
	delete(e.users[c.spec.User], c)
	if len(e.users[c.spec.User]) < 2 {
		delete(e.several, c.spec.User)
	}
	if len(e.users[c.spec.User]) == 0 {
		delete(e.users, c.spec.User)
	}
}

// known returns the container with Docker's id; nil if there is none.
func (e *Executor) known(id string) *Container {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.ids[id]; c != nil {
		return c
	}
	for c := range e.all {
		if c.ID() == id {
			return c
		}
	}
	return nil
}

// runningDetached returns the container of a process, or a persistent one, while it runs, paused or
// not; otherwise nil.
func (e *Executor) runningDetached(id string) *Container {
	e.mu.Lock()
	c := e.ids[id]
	e.mu.Unlock()
	if c == nil || !c.spec.isDetached() || !c.is(life.Starting, life.Ready, life.Frozen) {
		return nil
	}
	return c
}

// HoldsFile reports whether a container of a user's, of whatever kind, has a file as a mount of its
// own.
func (e *Executor) HoldsFile(user string, id FileID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.users[user] {
		if !c.is(life.Ended, life.Gone) &&
			slices.ContainsFunc(c.spec.Mounts, func(m Mount) bool { return m.ID.Same(id) }) {
			return true
		}
	}
	return false
}

// follow has Docker's events reach a container from now on.
func (e *Executor) follow(c *Container) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ids[c.ID()] = c
}

// died is what Docker's event says: the programs of the container with an id have ended, or it is
// gone.
func (e *Executor) died(id string) {
	e.mu.Lock()
	c := e.ids[id]
	e.mu.Unlock()
	if c != nil {
		e.Lose(c)
	}
}

// Lose has a container end whose programs have ended, or whose session has. A detached one keeps
// its exit code; others are removed, with what is learned of their end.
func (e *Executor) Lose(c *Container) {
	switch c.Do(life.Die, ErrLost) {
	case life.Ends:
		c.net.Leave()
		e.work.Go(func() { // storage that does not answer holds up no event of Docker's
			c.hangUp()
			e.free(c, true)
		})
	case life.Removes:
		e.work.Go(func() {
			c.hangUp()
			e.learnEnd(c)
			e.Tell(e.ctx, c,
				Incident{What: "session with the container has ended; removing the container",
					Level: zerolog.WarnLevel, Why: c.why()})
			e.removed(c)
		})
	default: // its maker notices, or it is being removed
	}
}

// Expel removes a container with all that runs in it, or stops it if it is detached. It does not
// block: if the container is being made, its maker removes it, and no call gets it.
func (e *Executor) Expel(fingerprint Fingerprint) {
	e.mu.Lock()
	var those []*Container
	for c := range e.all {
		if c.fingerprint == fingerprint {
			those = append(those, c)
		}
	}
	e.mu.Unlock()
	for _, c := range those {
		e.expel(c)
	}
}

func (e *Executor) expel(c *Container) {
	if c.spec.isDetached() {
		// One that has ended is left alone: its exit code is somebody's to read.
		if c.Do(life.Abort, ErrLost) == life.Refused && c.is(life.Ready, life.Frozen) {
			e.kill(c, expelled)
		}
		return
	}
	if c.Do(life.Remove, ErrLost) == life.Removes {
		c.hangUp()
		e.Tell(e.ctx, c, Incident{What: "removing the container, with what runs in it",
			Level: zerolog.WarnLevel})
		e.RemoveLater(c)
	}
}

// expelled is why a process was ended whose view would have changed.
const expelled = "a path that is hidden, read-only or mounted for it, such as its working " +
	"directory, was moved, replaced or removed by another call or on the host; it was ended so " +
	"that it sees and writes nothing that it may not"

// kill stops a detached container that nobody has asked to stop, once. It does not block.
func (e *Executor) kill(c *Container, why string) {
	if !c.because.CompareAndSwap(nil, &why) {
		return
	}
	e.work.Go(func() {
		stop := func() (done bool) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), RemovalLimit)
			defer cancel()
			err := e.StopProcess(ctx, c.ID(), unix.SIGKILL, 0)
			if err != nil {
				e.Tell(e.ctx, c, Incident{What: "cannot end a process that would see hidden files",
					Level: zerolog.ErrorLevel, Err: err})
			}
			return err == nil || !c.is(life.Ready, life.Frozen)
		}
		if !stop() {
			e.repeat(stop)
		}
	})
}

// RemoveLater is Remove in the background. It tries until Docker has removed the container, or the
// service ends.
func (e *Executor) RemoveLater(c *Container) { e.work.Go(func() { e.removed(c) }) }

// removed is Remove for callers that have nobody to tell of an error: it tries until Docker has
// removed the container, or the service ends. Until then it is known whose programs may still run.
func (e *Executor) removed(c *Container) {
	again := func() (done bool) {
		if err := e.Remove(c); err != nil {
			e.Tell(e.ctx, c, Incident{What: "cannot remove container", Err: err})
		}
		return c.is(life.Gone)
	}
	if !again() {
		e.repeat(again)
	}
}

// Remove removes a container that came to Leaving, with all that it has, and forgets it. It blocks
// until Docker has done it. One that Docker does not remove stays Leaving, and can be removed
// again.
func (e *Executor) Remove(c *Container) error {
	c.removing.Lock()
	defer c.removing.Unlock()
	if c.is(life.Gone) {
		return nil
	}
	there, err := e.dispose(c)
	if there {
		return err
	}
	e.unlist(c)
	return err
}

// dispose removes a container with all that it has on the host. It reports whether the container is
// still there.
func (e *Executor) dispose(c *Container) (there bool, err error) {
	c.hangUp()
	var faults []error
	if id := c.ID(); id != "" {
		err := e.removeContainer(id)
		there = err != nil
		faults = append(faults, err)
	}
	e.free(c, !there)
	if there {
		return there, errors.Join(faults...)
	}
	faults = append(faults, removeSpool(c.spool))
	if c.pool != "" {
		faults = append(faults, e.unbind(c.ID()), e.removePooled(c.pool))
	}
	return false, errors.Join(append(faults, e.dropTmp(c))...)
}

// free gives back what a container has on the network and, if its programs have ended, on the host:
// removing a mount point uncovers what it hides. The home of a user who was lost stays as it is: a
// container that another host starts may need the same mount points.
func (e *Executor) free(c *Container, ended bool) {
	c.net.Leave()
	if ended {
		c.mounts.release(e.cfg.Mounts, e.hasLost(c.spec.User))
	}
}

// dropTmp removes the volume of a container that uses it no more, if it was the last one.
func (e *Executor) dropTmp(c *Container) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), RemovalLimit)
	defer cancel()
	return e.removeTmp(ctx, c.tmp)
}

// unlist takes a container out of the registry of which nothing is left.
func (e *Executor) unlist(c *Container) {
	e.mu.Lock()
	e.strike(c)
	if e.calls[c.fingerprint] == c {
		delete(e.calls, c.fingerprint)
	}
	if id := c.ID(); e.ids[id] == c {
		delete(e.ids, id)
		delete(e.ends, id)
	}
	e.mu.Unlock()
	if !c.spec.isDetached() {
		e.publish(c, "removed")
	}
	c.givePlace()
	c.Do(life.Removed, nil)
}

// ErrLost is about a container that ended before a call's command began in it: another one will do.
var ErrLost = errors.New(
	"the container was lost before the command began: it was removed, killed or has ended by " +
		"itself")

// lostError is an error for a caller that also matches ErrLost.
type lostError struct{ error }

func (lostError) Is(target error) bool { return target == ErrLost }

// endingLag is how long a container in which an exec fails may take to end. Docker may notice its
// end later.
const endingLag = 2 * time.Second

// isLost reports whether making a container ready failed because the container has ended. Docker
// does not end an exec's stream when the container ends while the exec is being set up; its event
// ends ctx.
func (e *Executor) isLost(ctx context.Context, c *Container) bool {
	if ctx.Err() != nil {
		return errors.Is(context.Cause(ctx), ErrLost)
	}
	// The runtime knows of a container's end before Docker does.
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := doneWithin(e.engine.Wait(waiting, c.ID()), endingLag)
	if ended || errors.Is(context.Cause(ctx), ErrLost) { // the event that reports it ends the wait
		return true
	}
	now, err := e.InspectProcess(ctx, c.ID())
	return cerrdefs.IsNotFound(err) ||
		err == nil && (!now.Running || unix.Kill(now.PID, 0) == unix.ESRCH)
}
