package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/budget"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/events"
)

// following are the places of those who follow something of the service's as a whole, shared among callers: one who has many
// connections leaves some to others, and to the operator.
type following struct{ events, decisions *budget.Pool }

func newFollowing() following {
	return following{budget.NewPool(events.MaxFollowers, 0), budget.NewPool(decisions.MaxFollowers, 0)}
}

// place takes a place for the caller, until leave is called.
func (s *server) place(of *budget.Pool, what string) (leave func(), err error) {
	who := s.caller.Name
	if !of.Take(who, 1) {
		return nil, fmt.Errorf("cannot follow %s: %s follows them as often as it may beside others: try again when one has ended: %w", what, who, cerrdefs.ErrResourceExhausted)
	}
	return func() { of.Give(who, 1) }, nil
}

// follow answers with the recent decisions and then with each as it is made, until the caller goes or the
// service stops.
func (s *server) follow(w http.ResponseWriter, req *http.Request, q decisionQuery) error {
	leave, err := s.place(s.following.decisions, "egress decisions")
	if err != nil {
		return err
	}
	defer leave()
	follower, err := s.service.Decisions().Follow(q.filter)
	if err != nil {
		return err
	}
	defer follower.Close()
	ctx, stream := s.openStream(w, req, ndjson)
	defer stream.close()
	stream.decisions(ctx, follower, q.recent(s.service.Decisions()))
	return nil
}

// decisions sends those that there were when it was looked, and then what the follower hears, until ctx ends or the
// caller has gone. The follower was there before it was looked.
func (s *lineStream) decisions(ctx context.Context, follower *decisions.Follower, recent []decisions.Decision) {
	told := newOverlap(recent)
	err := s.flush() // what has begun, where there are none
	for few := range slices.Chunk(recent, 64) {
		if err = s.send(decisionEvents(0, few...)...); err != nil {
			return
		}
	}
	for err == nil { // or else the caller has gone
		quiet, done := context.WithTimeout(ctx, keepAlive)
		d, lost, silence := follower.Next(quiet)
		done()
		switch {
		case ctx.Err() != nil:
			return
		case silence != nil:
			err = s.keepAlive()
		case told.has(d):
			err = s.send(decisionEvents(lost)...)
		default:
			err = s.send(decisionEvents(lost, d)...)
		}
	}
}

// overlap finds what was decided between Follow and Recent, and so is in both.
type overlap struct {
	latest map[decisions.Decision]uint64 // the Seq of each kind
	last   uint64
}

func newOverlap(recent []decisions.Decision) *overlap {
	o := &overlap{latest: make(map[decisions.Decision]uint64, len(recent))}
	for _, d := range recent {
		o.latest[kindOf(d)] = d.Seq
		o.last = max(o.last, d.Seq)
	}
	return o
}

func (o *overlap) has(d decisions.Decision) bool {
	if d.Seq > o.last {
		o.latest = nil // no later one is in it
		return false
	}
	return d.Seq <= o.latest[kindOf(d)]
}

// kindOf is what repeats have in common.
func kindOf(d decisions.Decision) decisions.Decision {
	d.Seq, d.Count, d.First, d.Time = 0, 0, time.Time{}, time.Time{}
	return d
}

// decisionEvents are the lines of decisions, and before them of how many were lost.
func decisionEvents(lost uint64, list ...decisions.Decision) []any {
	var events []any
	if lost > 0 {
		events = append(events, types.DecisionEvent{Lost: lost})
	}
	for _, d := range list {
		line := decision(d)
		events = append(events, types.DecisionEvent{Decision: &line})
	}
	return events
}
