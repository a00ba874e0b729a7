package dockerexec

import (
	"context"

	"github.com/daycare-run/sandbox/internal/quota"
)

// maxWarming is how many containers that no call has asked for may be on their way for one user,
// and maxWarmingTotal for all.
const (
	maxWarming      = 16
	maxWarmingTotal = 500
)

// Warm makes the container of a user's Spec, if there is none, for a future call. It does not
// block, not even for the Spec: plan is called in the background. The container is made when no
// call waits for another one; once a call asks for it, it gets its turn like those that calls wait
// for. If too many are on their way, it is left to the call. token is the token of the caller.
func (w *warm) Warm(user string, token quota.Token, plan func(context.Context) (Spec, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	if w.warming[user] >= maxWarming || w.warmingTotal >= maxWarmingTotal {
		w.cfg.Events.Tell(w.ctx, user,
			Incident{What: "no container is made ahead of calls: too many are on their way"})
		return
	}
	w.countWarming(user, 1)
	w.work.Go(func() {
		defer func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.countWarming(user, -1)
		}()
		spec, err := plan(w.ctx)
		if err != nil {
			w.cfg.Events.Tell(w.ctx, user,
				Incident{What: "no container is made ahead of calls", Err: err})
			return
		}
		fingerprint := spec.Fingerprint()
		w.mu.Lock()
		if c := w.calls[fingerprint]; w.closed || c != nil && c.is(inUse...) {
			w.mu.Unlock()
			return
		}
		c := w.add(spec, fingerprint)
		c.token = token
		w.mu.Unlock()
		w.make(c, &w.cfg.Log)
	})
}

// countWarming counts containers on their way; e.mu is held.
func (w *warm) countWarming(user string, more int) {
	w.warmingTotal += more
	if w.warming[user] += more; w.warming[user] == 0 {
		delete(w.warming, user)
	}
}
