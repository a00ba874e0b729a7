package warm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Calls find their container by its Spec's fingerprint. So does what waits in the pool.

// maxCommands is how many commands may run, or wait to run, in one container. An agent takes more,
// so it refuses none.
const maxCommands = 500

// acquired says what a call met: no container, or a frozen one. thawing is set while its container
// may still be resuming.
type acquired struct {
	cold, thawed bool
	thawing      *life.Thawing
}

// acquire returns the Spec's container, ready and counted as in use until release. One that was
// frozen may still be resuming. It blocks while the container is being made.
func (r *Runner) acquire(
	ctx context.Context, spec dockerexec.Spec, token quota.Token,
) (c *dockerexec.Container, got acquired, err error) {
	c, got, err = r.find(ctx, spec, token)
	if err != nil {
		return nil, got, err
	}
	select {
	case <-c.Settled():
	case <-ctx.Done():
		r.release(c)
		return nil, got, context.Cause(ctx)
	}
	if now := c.Now(); now.State > life.Frozen {
		r.release(c)
		if now.Why == nil {
			now.Why = dockerexec.ErrLost
		}
		return nil, got, now.Why
	}
	return c, got, nil
}

// find counts a call in the Spec's container, which it has made, taken over or thawed, if need be.
func (r *Runner) find(
	ctx context.Context, spec dockerexec.Spec, token quota.Token,
) (c *dockerexec.Container, got acquired, err error) {
	for {
		c, added, err := r.executor.Add(spec, spec.Platform, token)
		if err != nil {
			return nil, got, err
		}
		from, thawing, err := c.Join(maxCommands)
		if added {
			got.cold = true
			go r.make(ctx, c) // the Executor's Shutdown waits for it
		}
		if errors.Is(err, life.ErrLeft) { // just now
			continue
		}
		if err != nil {
			return nil, got, fmt.Errorf("cannot run a command for user %q: %w", spec.User, err)
		}
		got.thawing, got.thawed = thawing, r.thaw(c, from, thawing)
		return c, got, nil
	}
}

// thaw has a container go on that a call has joined, if it was frozen, and reports whether it
// thaws.
func (r *Runner) thaw(
	c *dockerexec.Container, from life.State, thawing *life.Thawing,
) (thawed bool) {
	if from == life.Frozen {
		r.freezes.thawed.Add(1)
	}
	return r.executor.Thaw(c, from, thawing)
}

// release ends what acquire began.
func (r *Runner) release(c *dockerexec.Container) {
	if c.Do(life.Return, nil) == life.Removes {
		r.executor.RemoveLater(c)
	}
}

// Containers lists this instance's containers of users, by name.
func (r *Runner) Containers() []dockerexec.Summary { return r.list(false) }

// Pooled lists this instance's containers that wait for future users, or are being made for them,
// by name.
func (r *Runner) Pooled() []dockerexec.Summary { return r.list(true) }

func (r *Runner) list(pooled bool) []dockerexec.Summary {
	list := []dockerexec.Summary{}
	for _, c := range r.executor.ForCalls() {
		if c.Spec().IsPooled() == pooled && c.Now().State < life.Ended {
			list = append(list, c.Summary())
		}
	}
	slices.SortFunc(list, func(a, b dockerexec.Summary) int {
		return strings.Compare(a.Name, b.Name)
	})
	return list
}

// containerTries is how many containers a call may try.
const containerTries = 3

// retryLost calls do, and again whenever its container was lost before a command began in it.
func (r *Runner) retryLost(ctx context.Context, user string, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		if try == containerTries || !errors.Is(err, dockerexec.ErrLost) || ctx.Err() != nil {
			return err
		}
		r.cfg.Events.Tell(ctx, user,
			dockerexec.Incident{What: "the call gets another container", Try: try, Err: err})
	}
}
