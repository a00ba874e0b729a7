package enginetest

import (
	"context"
	"slices"

	"github.com/daycare-run/sandbox/internal/engine"
)

type subscription struct {
	happened chan engine.Event
	failed   chan error
}

// maxUntaken is how many events may wait for a subscriber.
const maxUntaken = 1000

// Events implements engine.Engine.
func (e *Engine) Events(ctx context.Context) (<-chan engine.Event, <-chan error) {
	s := &subscription{make(chan engine.Event, maxUntaken), make(chan error, 1)}
	_, err := run(ctx, e, Call{Verb: "Events"}, func() (struct{}, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.subscriptions = append(e.subscriptions, s)
		return struct{}{}, nil
	})
	if err != nil {
		s.failed <- err
		return s.happened, s.failed
	}
	context.AfterFunc(ctx, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.unsubscribe(s, ctx.Err())
	})
	return s.happened, s.failed
}

// unsubscribe ends a subscription that has not ended; e.mu is held.
func (e *Engine) unsubscribe(s *subscription, why error) {
	if i := slices.Index(e.subscriptions, s); i >= 0 {
		e.subscriptions = slices.Delete(slices.Clone(e.subscriptions), i, i+1)
		s.failed <- why
	}
}

// Tell has something happen of which nothing else here tells.
func (e *Engine) Tell(event engine.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tell(event)
}

// tell sends an event to all who follow; e.mu is held.
func (e *Engine) tell(event engine.Event) {
	for _, s := range e.subscriptions {
		select {
		case s.happened <- event:
		default:
			panic("enginetest: a subscriber takes no events")
		}
	}
}

// BreakEvents ends all subscriptions with an error. What happens until somebody subscribes again is
// told to nobody.
func (e *Engine) BreakEvents(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range slices.Clone(e.subscriptions) {
		e.unsubscribe(s, why)
	}
}
