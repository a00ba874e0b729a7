package warm

import (
	"context"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/quota"
)

// maxWarming is how many containers that no call has asked for may be on their way for one user,
// and maxWarmingTotal for all.
const (
	maxWarming      = 16
	maxWarmingTotal = 500
)

// Warm makes the container of a user's Spec, if there is none, for a future call. It does not
// block, not even for the Spec: plan is called in the background, and calls make with it, which
// blocks. The container is made when no call waits for another one; once a call asks for it, it
// gets its turn like those that calls wait for. If too many are on their way, it is left to the
// call. token is the token of the caller.
func (r *Runner) Warm(
	user string, token quota.Token, plan func(_ context.Context, make func(dockerexec.Spec)) error,
) {
	if !r.startWarming(user) {
		r.cfg.Events.Tell(context.Background(), user, dockerexec.Incident{
			What: "no container is made ahead of calls: too many are on their way"})
		return
	}
	begun := r.executor.Go(func(ctx context.Context) {
		defer r.endWarming(user)
		err := plan(ctx, func(spec dockerexec.Spec) {
			if c, added, _ := r.executor.Add(spec, spec.Platform, token); added {
				r.make(ctx, c)
			}
		})
		if err != nil {
			r.cfg.Events.Tell(ctx, user, dockerexec.Incident{
				What: "no container is made ahead of calls", Err: err})
		}
	})
	if !begun {
		r.endWarming(user)
	}
}

// startWarming counts a container on its way, unless there are too many.
func (r *Runner) startWarming(user string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	total := 0
	for _, n := range r.warming {
		total += n
	}
	if r.warming[user] >= maxWarming || total >= maxWarmingTotal {
		return false
	}
	r.warming[user]++
	return true
}

func (r *Runner) endWarming(user string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.warming[user]--; r.warming[user] == 0 {
		delete(r.warming, user)
	}
}
