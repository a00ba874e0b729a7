package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/fair"
)

// following bounds how many callers follow events or decisions. Callers share the places: one with
// many connections leaves some to others, and to the operator.
type following struct{ events, decisions *fair.Pool }

func newFollowing() following {
	return following{fair.NewPool(events.MaxFollowers, 0),
		fair.NewPool(decisions.MaxFollowers, 0)}
}

// place takes a place for the caller; leave gives it back.
func (s *server) place(of *fair.Pool, what string) (leave func(), err error) {
	who := s.caller.Name
	if !of.Take(who, 1) {
		return nil, fmt.Errorf(
			"cannot follow %s: %s already follows them as often as allowed: try again when one of these streams has ended: %w",
			what, who, cerrdefs.ErrResourceExhausted)
	}
	return func() { of.Give(who, 1) }, nil
}

// follow answers with the recent decisions and then with each new one, until the caller goes or the
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

// decisions sends the recent decisions and then those that the follower receives, until ctx ends or
// the caller has gone. The follower has to exist before recent is read.
func (s *lineStream) decisions(ctx context.Context, follower *decisions.Follower,
	recent []decisions.Decision) {
	told := newOverlap(recent)
	err := s.flush() // sends the headers, even without decisions
	for few := range slices.Chunk(recent, 64) {
		if err = s.send(decisionEvents(0, few...)...); err != nil {
			return
		}
	}
	for err == nil { // an error means that the caller has gone
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

// overlap finds decisions made between Follow and Recent, which are in both.
type overlap struct {
	latest map[decisions.Decision]uint64 // the latest Seq of each kind
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
		o.latest = nil // no later decision is in it
		return false
	}
	return d.Seq <= o.latest[kindOf(d)]
}

// kindOf returns what repeats of a decision have in common.
func kindOf(d decisions.Decision) decisions.Decision {
	d.Seq, d.Count, d.First, d.Time = 0, 0, time.Time{}, time.Time{}
	return d
}

// decisionEvents returns the lines for decisions, preceded by one for how many were lost.
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
