package warm

import (
	"context"
	"fmt"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Tmp returns where the user's /tmp is on Docker's host. It exists while the user has a container,
// so one is held until release: any of the user's that has it, or that of the Spec, which is made
// if create is set, within the token's bounds and in its turn; otherwise the error is
// errdefs.ErrNotFound. It blocks while a container is being made.
func (r *Runner) Tmp(
	ctx context.Context, spec dockerexec.Spec, token quota.Token, create bool,
) (dir string, release func(), err error) {
	c := r.hold(spec)
	if c == nil {
		// A process may have it. If that ends meanwhile, open files stay open, and the rest is not
		// found.
		if dir, held := r.executor.HeldTmp(ctx, spec); held {
			return dir, func() {}, nil
		}
		if !create {
			return "", nil, fmt.Errorf(
				"user %q has no container: %w", spec.User, cerrdefs.ErrNotFound)
		}
		err := r.retryLost(ctx, spec.User, func() (err error) {
			c, _, err = r.acquire(ctx, spec, token)
			return err
		})
		if err != nil {
			return "", nil, err
		}
	}
	if dir, err = r.executor.TmpDir(ctx, c); err != nil {
		r.release(c)
		return "", nil, err
	}
	return dir, func() { r.release(c) }, nil
}

// hold takes an existing container that has the Spec's /tmp; nil if there is none.
func (r *Runner) hold(spec dockerexec.Spec) *dockerexec.Container {
	for _, c := range r.executor.ForCallsOf(spec.User) {
		state := c.Now().State
		if state < life.Ready || state > life.Frozen || !c.SharesTmp(spec) {
			continue
		}
		if from, thawing, err := c.Join(maxCommands); err == nil {
			r.thaw(c, from, thawing)
			return c
		}
	}
	return nil
}
