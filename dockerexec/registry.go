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
func (h *host) inState(states ...life.State) (list []*Container) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.all {
		if c.is(states...) {
			list = append(list, c)
		}
	}
	return list
}

// known returns the container with Docker's id; nil if there is none.
func (h *host) known(id string) *Container {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.ids[id]; c != nil {
		return c
	}
	for c := range h.all {
		if c.ID() == id {
			return c
		}
	}
	return nil
}

// runningDetached returns the container of a process, or a persistent one, while it runs, paused or
// not; otherwise nil.
func (h *host) runningDetached(id string) *Container {
	h.mu.Lock()
	c := h.ids[id]
	h.mu.Unlock()
	if c == nil || !c.spec.isDetached() || !c.is(life.Starting, life.Ready, life.Frozen) {
		return nil
	}
	return c
}

// HoldsFile reports whether a container of a user's, of whatever kind, has a file as a mount of its
// own.
func (h *host) HoldsFile(user string, id FileID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.all {
		if c.spec.User == user && !c.is(life.Ended, life.Gone) &&
			slices.ContainsFunc(c.spec.Mounts, func(m Mount) bool { return m.ID.Same(id) }) {
			return true
		}
	}
	return false
}

// follow has Docker's events reach a container from now on.
func (h *host) follow(c *Container) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ids[c.ID()] = c
}

// died is what Docker's event says: the programs of the container with an id have ended, or it is
// gone.
func (h *host) died(id string) {
	h.mu.Lock()
	c := h.ids[id]
	h.mu.Unlock()
	if c != nil {
		h.Lose(c)
	}
}

// Lose has a container end whose programs have ended, or whose session has. A detached one keeps
// its exit code; others are removed, with what is learned of their end.
func (h *host) Lose(c *Container) {
	switch c.Do(life.Die, lostError{ErrLost}) {
	case life.Ends:
		h.free(c, true)
		h.work.Go(c.hangUp)
		h.work.Go(func() { h.dropTmp(c) })
	case life.Removes:
		h.work.Go(func() {
			c.hangUp()
			h.learnEnd(c)
			h.Tell(h.ctx, c,
				Incident{What: "session with the container has ended; removing the container",
					Level: zerolog.WarnLevel, Why: c.why()})
			h.removed(c)
		})
	default: // its maker notices, or it is being removed
	}
}

// Expel removes a container with all that runs in it, or stops it if it is detached. It does not
// block: if the container is being made, its maker removes it, and no call gets it.
func (h *host) Expel(fingerprint Fingerprint) {
	h.mu.Lock()
	var those []*Container
	for c := range h.all {
		if c.fingerprint == fingerprint {
			those = append(those, c)
		}
	}
	h.mu.Unlock()
	for _, c := range those {
		h.expel(c)
	}
}

func (h *host) expel(c *Container) {
	switch {
	case !c.spec.isDetached() || c.is(life.Starting):
	case c.is(life.Ready, life.Frozen):
		h.kill(c, expelled)
		return
	default: // it has ended, and its exit code is somebody's to read
		return
	}
	if c.Do(life.Remove, lostError{ErrLost}) == life.Removes {
		c.hangUp()
		h.Tell(h.ctx, c, Incident{What: "removing the container, with what runs in it",
			Level: zerolog.WarnLevel})
		h.RemoveLater(c)
	}
}

// expelled is why a process was ended whose view would have changed.
const expelled = "a path that is hidden, read-only or mounted for it, such as its working directory, was moved, replaced or removed by " +
	"another call or on the host; it was ended so that it sees and writes nothing that it may not"

// kill stops a detached container that nobody has asked to stop, once. It does not block.
func (h *host) kill(c *Container, why string) {
	if !c.because.CompareAndSwap(nil, &why) {
		return
	}
	h.work.Go(func() {
		stop := func() (done bool) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(h.ctx), RemovalLimit)
			defer cancel()
			err := h.StopProcess(ctx, c.ID(), unix.SIGKILL, 0)
			if err != nil {
				h.Tell(h.ctx, c, Incident{What: "cannot end a process that would see hidden files",
					Level: zerolog.ErrorLevel, Err: err})
			}
			return err == nil || !c.is(life.Ready, life.Frozen)
		}
		if !stop() {
			h.repeat(stop)
		}
	})
}

// RemoveLater is Remove in the background. It tries until Docker has removed the container, or the
// service ends.
func (h *host) RemoveLater(c *Container) { h.work.Go(func() { h.removed(c) }) }

// removed is Remove for callers that have nobody to tell of an error: it tries until Docker has
// removed the container, or the service ends. Until then it is known whose programs may still run.
func (h *host) removed(c *Container) {
	again := func() (done bool) {
		if err := h.Remove(c); err != nil {
			h.Tell(h.ctx, c, Incident{What: "cannot remove container", Err: err})
		}
		return c.is(life.Gone)
	}
	if !again() {
		h.repeat(again)
	}
}

// Remove removes a container that came to Leaving, with all that it has, and forgets it. It blocks
// until Docker has done it. One that Docker does not remove stays Leaving, and can be removed
// again.
func (h *host) Remove(c *Container) error {
	c.removing.Lock()
	defer c.removing.Unlock()
	if c.is(life.Gone) {
		return nil
	}
	there, err := h.dispose(c)
	if there {
		return err
	}
	h.unlist(c)
	return err
}

// dispose removes a container with all that it has on the host. It reports whether the container is
// still there.
func (h *host) dispose(c *Container) (there bool, err error) {
	c.hangUp()
	var faults []error
	if id := c.ID(); id != "" {
		err := h.removeContainer(id)
		there = err != nil
		faults = append(faults, err)
	}
	h.free(c, !there)
	if there {
		return there, errors.Join(faults...)
	}
	faults = append(faults, removeSpool(c.spool))
	if c.pool != "" {
		faults = append(faults, h.unbind(c.ID()), h.removePooled(c.pool))
	}
	return false, errors.Join(append(faults, h.dropTmp(c))...)
}

// free gives back what a container has on the network and, if its programs have ended, on the host:
// removing a mount point uncovers what it hides.
func (h *host) free(c *Container, ended bool) {
	c.net.Leave()
	if ended {
		c.mounts.release(h.cfg.Mounts)
	}
}

// dropTmp removes the volume of a container that uses it no more, if it was the last one.
func (h *host) dropTmp(c *Container) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.ctx), RemovalLimit)
	defer cancel()
	return h.removeTmp(ctx, c.tmpName())
}

// unlist takes a container out of the registry of which nothing is left.
func (h *host) unlist(c *Container) {
	h.mu.Lock()
	delete(h.all, c)
	if h.calls[c.fingerprint] == c {
		delete(h.calls, c.fingerprint)
	}
	if id := c.ID(); h.ids[id] == c {
		delete(h.ids, id)
	}
	h.mu.Unlock()
	if !c.spec.isDetached() {
		h.publish(c, "removed")
	}
	c.givePlace()
	c.Do(life.Removed, nil)
}

// ErrLost is about a container that ended before a call's command began in it: another one will do.
var ErrLost = errors.New(
	"the container was lost before the command began: it was removed, killed or has ended by itself")

// lostError is an error for a caller that also matches ErrLost.
type lostError struct{ error }

func (lostError) Is(target error) bool { return target == ErrLost }

// endingLag is how long a container in which an exec fails may take to end. Docker may notice its
// end later.
const endingLag = 2 * time.Second

// isLost reports whether making a container ready failed because the container has ended. Docker
// does not end an exec's stream when the container ends while the exec is being set up; its event
// ends ctx.
func (h *host) isLost(ctx context.Context, c *Container) bool {
	if ctx.Err() != nil {
		return errors.Is(context.Cause(ctx), ErrLost)
	}
	// The runtime knows of a container's end before Docker does.
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := doneWithin(h.engine.Wait(waiting, c.ID()), endingLag)
	if ended || errors.Is(context.Cause(ctx), ErrLost) { // the event that reports it ends the wait
		return true
	}
	now, err := h.InspectProcess(ctx, c.ID())
	return cerrdefs.IsNotFound(err) ||
		err == nil && (!now.Running || unix.Kill(now.PID, 0) == unix.ESRCH)
}
