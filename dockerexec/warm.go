package dockerexec

import (
	"context"

	"github.com/daycare-run/sandbox/internal/quota"
)

// maxWarming is how many containers that no call has asked for may be on their way for one user, and maxWarmingTotal for all.
const (
	maxWarming      = 16
	maxWarmingTotal = 500
)

// Warm makes the container of a user's Spec, if there is none, for a future call. It does not block, not even for the
// Spec: plan is called in the background. The container is made when no call waits for another one; once a call asks
// for it, it gets its turn like those that calls wait for. If too many are on their way, it is left to the call. token
// is the token of the caller.
func (e *Executor) Warm(user string, token quota.Token, plan func(context.Context) (Spec, error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	if e.warming[user] >= maxWarming || e.warmingTotal >= maxWarmingTotal {
		e.cfg.Events.Tell(e.ctx, user, Incident{What: "no container is made ahead of calls: too many are on their way"})
		return
	}
	e.countWarming(user, 1)
	e.work.Go(func() {
		defer func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.countWarming(user, -1)
		}()
		spec, err := plan(e.ctx)
		if err != nil {
			e.cfg.Events.Tell(e.ctx, user, Incident{What: "no container is made ahead of calls", Err: err})
			return
		}
		fingerprint := spec.Fingerprint()
		e.mu.Lock()
		if c := e.calls[fingerprint]; e.closed || c != nil && c.is(inUse...) {
			e.mu.Unlock()
			return
		}
		c := e.add(spec, fingerprint)
		c.token = token
		e.mu.Unlock()
		e.make(c, &e.cfg.Log)
	})
}

// countWarming counts containers on their way; e.mu is held.
func (e *Executor) countWarming(user string, more int) {
	e.warmingTotal += more
	if e.warming[user] += more; e.warming[user] == 0 {
		delete(e.warming, user)
	}
}
