package warm

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
)

// EndCommands ends the running commands as if their callers had gone, and those that come later.
// The error of their calls is of class Unavailable. It does not wait for them.
func (r *Runner) EndCommands() { r.stop(dockerexec.ErrStopping) }

// Run executes a command in the container of the Spec, which is made if there is none. It blocks
// until the command and everything that it left running have ended. When ctx ends, so does the
// command, and the error is ctx's cause. An error that wraps session.ErrBroken says that it is
// unknown how far the command got. A container that is lost before the command has begun is
// replaced.
func (r *Runner) Run(
	ctx context.Context, spec dockerexec.Spec, command Command, out session.Output,
) (result Result, err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(r.stopping, func() { end(context.Cause(r.stopping)) })()
	if command.Started != nil {
		command.Started = sync.OnceFunc(command.Started)
	}
	err = r.retryLost(ctx, spec.User, func() (err error) {
		result, err = r.runOnce(ctx, spec, command, out, result.Waited)
		return err
	})
	if err != nil && r.stopping.Err() != nil {
		err = context.Cause(r.stopping)
	}
	return result, err
}

// runOnce is Run in one container. waited is how long the call has already waited for earlier
// containers.
func (r *Runner) runOnce(
	ctx context.Context, spec dockerexec.Spec, command Command, out session.Output,
	waited time.Duration,
) (Result, error) {
	begun := time.Now()
	c, got, err := r.acquire(ctx, spec, command.Token)
	waited += time.Since(begun)
	if err != nil {
		return Result{Waited: waited}, err
	}
	defer r.release(c)
	if command.Prepare != nil {
		done, err := command.Prepare(ctx, c.Session())
		if err != nil {
			return Result{Waited: waited}, err
		}
		defer done()
	}
	end, err := c.Command(ctx)
	if err != nil {
		return Result{Waited: waited}, err
	}
	if command.Started != nil {
		command.Started()
	}
	if got.thawing != nil {
		command.TimeoutFrom = got.thawing.Done()
	}
	command.Ahead = r.executor.Ahead()
	ended, err := c.Session().Run(ctx, command.Command, out)
	if errors.Is(err, session.ErrEnded) {
		err = dockerexec.ErrLost
	}
	result := Result{Result: ended}
	if got.thawing != nil && errors.Is(err, session.ErrBroken) {
		err = got.thawing.Explain(ctx, err)
	}
	if errors.Is(err, session.ErrBroken) || errors.Is(err, dockerexec.ErrLost) {
		// Do not wait for its watcher to notice: the next call must get another container.
		r.executor.Lose(c)
		err = r.lostWith(ctx, c, &result, err)
	} else {
		end()
		result.Exhausted = r.outOfWhat(c, result)
	}
	result.InContainer, result.Waited = true, waited
	result.Cold, result.Thawed = got.cold, got.thawed
	return result, err
}
