package api

import (
	"bytes"
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/apitypes"
	"github.com/daycare-run/sandbox/egress/decisions"
)

const (
	// keepAlive is how long a stream is silent at most, so that nothing on its way takes it for dead.
	keepAlive = 15 * time.Second
	// lastWrite is how long a caller may take to read what is being sent when the service stops.
	lastWrite = time.Second
)

// follow answers with the recent decisions and then with each as it is made, until the caller goes or the
// service stops.
func (s *server) follow(w http.ResponseWriter, req *http.Request, q decisionQuery) error {
	follower, err := s.service.Decisions().Follow(q.filter)
	if err != nil {
		return err
	}
	defer follower.Close()
	stream := &decisionStream{to: w, control: http.NewResponseController(w)}
	ctx, end := context.WithCancel(req.Context())
	var watch sync.WaitGroup
	defer watch.Wait()
	defer end()
	watch.Go(func() {
		select {
		case <-s.cfg.Stopping:
			_ = stream.control.SetWriteDeadline(time.Now().Add(lastWrite))
			end()
		case <-ctx.Done():
		}
	})
	w.Header().Set("Content-Type", ndjson)
	w.Header().Set("Connection", "close") // the deadline would outlive the answer
	w.WriteHeader(http.StatusOK)
	recent := q.recent(s.service.Decisions())
	told := newOverlap(recent)
	err = stream.send(0, recent...)
	for err == nil { // or else the caller has gone
		quiet, done := context.WithTimeout(ctx, keepAlive)
		d, lost, silence := follower.Next(quiet)
		done()
		switch {
		case ctx.Err() != nil:
			return nil
		case silence != nil:
			err = stream.keepAlive()
		case told.has(d):
			err = stream.send(lost)
		default:
			err = stream.send(lost, d)
		}
	}
	return nil
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

// decisionStream writes lines, each at once.
type decisionStream struct {
	to      http.ResponseWriter
	control *http.ResponseController
	lines   bytes.Buffer
}

// send sends decisions, and before them how many were lost.
func (s *decisionStream) send(lost uint64, list ...decisions.Decision) error {
	if lost > 0 {
		if err := s.add(apitypes.DecisionEvent{Lost: lost}); err != nil {
			return err
		}
	}
	for _, d := range list {
		line := decision(d)
		if err := s.add(apitypes.DecisionEvent{Decision: &line}); err != nil {
			return err
		}
	}
	return s.flush()
}

// keepAlive sends an empty line, which readers of JSON skip.
func (s *decisionStream) keepAlive() error {
	s.lines.WriteByte('\n')
	return s.flush()
}

func (s *decisionStream) add(event apitypes.DecisionEvent) error {
	if err := json.MarshalWrite(&s.lines, event); err != nil {
		return err
	}
	return s.lines.WriteByte('\n')
}

func (s *decisionStream) flush() error {
	if _, err := s.lines.WriteTo(s.to); err != nil {
		return err
	}
	return s.control.Flush()
}
