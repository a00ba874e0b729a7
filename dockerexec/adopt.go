package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec/life"
)

// After a restart there may be a hundred containers to take over, and taking over one for calls
// costs an exec. So these queue, and a few are taken over at a time. One that a call waits for
// skips the queue. One that was found paused stays so until then: nothing runs in it. A detached
// one waits for no other: its storage may not answer.

// adoptionsAtOnce is how many containers for calls that no call waits for are taken over at a time.
const adoptionsAtOnce = 4

// adopt takes over containers that were found, and that are in the registry. What is there for
// calls and was paused then is left to the call that thaws it, even if that has come already.
func (e *Executor) adopt(found []*Container) {
	for _, c := range found {
		switch {
		case c.spec.isDetached():
			e.work.Go(func() { e.takeOver(c) })
		case !c.foundPaused:
			e.work.Go(func() { e.adoptInTurn(c) })
		}
	}
}

// adoptInTurn takes a container over in its turn, or as soon as a call wants it.
func (e *Executor) adoptInTurn(c *Container) {
	select {
	case e.adopting <- struct{}{}:
		defer func() { <-e.adopting }()
	case <-c.Wanted():
	case <-c.Making().Done(): // it is not to be taken over any more
	}
	e.takeOver(c)
}

// takeOver is the maker's part for a container that was found.
func (e *Executor) takeOver(c *Container) {
	if e.ctx.Err() == nil {
		// what an earlier service's commands were refused is nothing to those that come
		_, _ = e.CountRefusals(c)
	}
	if c.spec.isDetached() {
		e.takeOverDetached(c)
		return
	}
	if c.foundPaused { // an earlier service may have given its memory back
		e.cgroups.ForbidSwap(c.ID())
	}
	e.prepare(&e.cfg.Log, c)
}

// takeOverDetached resumes a container that is to run, prepares the host for it
// again, and opens its network access. A container for which the host cannot be prepared, or whose
// interface leads nowhere, is stopped: recreated it has what it needs.
func (e *Executor) takeOverDetached(c *Container) {
	ctx, cancel := context.WithTimeout(e.ctx, creationLimit)
	defer cancel()
	if c.is(life.Frozen) && e.wanted(c.spec).Running {
		done, err := c.Use(ctx)
		if err == nil {
			done()
		} else if !errors.Is(err, life.ErrPaused) { // as it was asked to be meanwhile
			e.Tell(ctx, c, Incident{What: "taking over a container", Err: err})
		}
		e.cgroups.ForbidSwap(c.ID())
	}
	if err := e.prepareFound(ctx, c); err != nil && e.ctx.Err() == nil {
		e.Tell(ctx, c, Incident{What: "ending a process that may see hidden files",
			Level: zerolog.ErrorLevel, Err: err})
		e.kill(c, fmt.Sprintf(
			"the service could not make sure that it sees nothing hidden, so it was ended: %v",
			err))
		return
	}
	if c.is(life.Ready, life.Frozen) { // it may have ended meanwhile, or be being removed
		e.bindFound(ctx, c)
	}
}

// prepareFound prepares the host for a running container that was found, if that has failed before.
// While its storage does not answer it tries again, until ctx ends.
func (e *Executor) prepareFound(ctx context.Context, c *Container) error {
	if c.mounts.prepare(e.cfg.Mounts, c.spec) == nil {
		return nil
	}
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := c.mounts.again(e.cfg.Mounts, c.spec)
		if err != nil && !cerrdefs.IsUnavailable(err) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(backoff.NewConstantBackOff(time.Second)), backoff.WithMaxElapsedTime(0))
	return err
}
