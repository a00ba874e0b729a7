package dockerexec

import (
	"context"
	"errors"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/engine"
)

// Docker does not end an exec's stream when the container ends while the exec is being set up. So the code that makes
// a container ready also listens to Docker's events for that container, and stops waiting when it has ended.

// errLost marks a container that ended before a call's command began in it: another container will do.
var errLost = errors.New("the container was lost before the command began: it was removed, killed or has ended by itself")

// containerTries is how many containers a call may try.
const containerTries = 3

// retryLost calls do, and again whenever its container was lost before a command began in it.
func (e *Executor) retryLost(ctx context.Context, user string, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		if try == containerTries || !errors.Is(err, errLost) || ctx.Err() != nil {
			return err
		}
		e.cfg.Events.Tell(ctx, user, Incident{What: "the call gets another container", Try: try, Err: err})
	}
}

// lostError is an error for a caller that also matches errLost.
type lostError struct{ error }

func (lostError) Is(target error) bool { return target == errLost }

// watchEnd returns a context that ends, with errLost, when Docker says that c's container has ended, or if c was or is
// expelled. stopWatching or dispose must follow it; before that, processEnded leaves the container to its maker.
func (e *Executor) watchEnd(ctx context.Context, c *container) context.Context {
	ctx, lose := context.WithCancelCause(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.lose = lose; c.spec.isAlone() && !c.spec.IsPooled() {
		e.processes[c.id] = c
	}
	e.preparing[c.id] = c
	if c.lost {
		lose(errLost)
	}
	return ctx
}

// lost aborts making a container ready that has ended, if that is under way; e.mu is held.
func (e *Executor) lost(id string) {
	if c := e.preparing[id]; c != nil {
		c.markLost()
	}
}

// markLost keeps a container that is being made ready from being used; Executor.mu is held.
func (c *container) markLost() {
	c.lost = true
	if c.lose != nil {
		c.lose(errLost)
	}
}

// stopWatching ends what watchEnd began; e.mu is held.
func (e *Executor) stopWatching(c *container) {
	if c.lose != nil {
		c.lose(nil)
		delete(e.preparing, c.id)
		c.lose = nil
	}
}

// loseMissing gives up those of ids that do not run according to Docker's list, which was made after ids. They are
// containers that are being made ready, sleep, or run without the service: no session breaks when one of these ends.
func (e *Executor) loseMissing(ids []string, listed []engine.Container) {
	alive := map[string]bool{}
	for _, found := range listed {
		switch found.State {
		case specs.StateStopped, engine.Removing:
		default:
			alive[found.ID] = true
		}
	}
	for _, id := range ids {
		if !alive[id] {
			e.ended(id)
			e.processEnded(id)
		}
	}
}

// endingLag is how long a container in which an exec fails may take to end. Docker may notice its end later.
const endingLag = 2 * time.Second

// isLost reports whether making a container ready failed because the container has ended. ctx is watchEnd's.
func (e *Executor) isLost(ctx context.Context, c *container) bool {
	if ctx.Err() != nil {
		return errors.Is(context.Cause(ctx), errLost)
	}
	// The runtime knows of a container's end before Docker does.
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := doneWithin(e.engine.Wait(waiting, c.id), endingLag)
	if ended || errors.Is(context.Cause(ctx), errLost) { // the event that reports it ends the wait
		return true
	}
	now, err := e.InspectProcess(ctx, c.id)
	return cerrdefs.IsNotFound(err) || err == nil && (!now.Running || unix.Kill(now.PID, 0) == unix.ESRCH)
}

// forget gives up a container that no longer works.
func (e *Executor) forget(c *container) {
	e.mu.Lock()
	remove := e.forgotten(c)
	e.mu.Unlock()
	remove()
}

// forgotten is forget for callers that hold e.mu. They call remove once they have released it.
func (e *Executor) forgotten(c *container) (remove func()) { return e.givenUp(c, e.learnEnd) }

// givenUp is forgotten with what is done before the container is removed.
func (e *Executor) givenUp(c *container, before func(*container)) (remove func()) {
	closes := e.closed && c.running == 0 // Shutdown has ended the session, and the container stays
	if !e.drop(c) || closes {
		return func() {}
	}
	return func() {
		e.work.Go(func() {
			c.hangUp()
			before(c)
			e.tell(e.ctx, c, Incident{What: "session with the container has ended; removing the container", Level: zerolog.WarnLevel, Why: c.why()})
			e.discard(c)
		})
	}
}
