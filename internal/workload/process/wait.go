package process

import (
	"context"
	"time"

	"github.com/daycare-run/sandbox/internal/errs"
)

// readyPoll is how often Wait looks whether a process is ready.
const readyPoll = 200 * time.Millisecond

// Wait blocks until a user's process will not run again or, with ready, until it is ready before
// that. After limit it gives up, and inTime is false. It returns the record as it is then. A
// process that is removed meanwhile is not found.
func (m *Manager) Wait(ctx context.Context, user, id string, ready bool,
	limit time.Duration) (r Record, inTime bool, _ error) {
	p, err := m.find(user, id)
	if err != nil {
		return Record{}, false, err
	}
	if ready && p.shown().Ready == nil {
		return Record{}, false,
			errs.Invalid(
				"process %s has no readiness check to wait for: it was started without ready", id)
	}
	ctx, leave, err := m.enter(ctx)
	if err != nil {
		return Record{}, false, err
	}
	defer leave()
	over := make(chan struct{})
	defer m.cfg.Clock.AfterFunc(limit, func() { close(over) }).Stop()
	for {
		if r := p.observed(); ready && r.Readiness.OK {
			return r, true, nil
		}
		var look chan struct{} // closed when it is time to look for readiness
		var timer Timer
		if ready {
			look = make(chan struct{})
			timer = m.cfg.Clock.AfterFunc(readyPoll, func() { close(look) })
		}
		select {
		case <-look:
			continue
		case <-p.finished:
			r, err = m.Get(user, id)
			inTime = err == nil
		case <-over:
			r = p.observed()
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if timer != nil {
			timer.Stop()
		}
		return r, inTime, err
	}
}
