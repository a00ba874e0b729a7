package sandbox

import (
	"context"
	"errors"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
)

// ExecEvent is what became of an exec, and how long its phases took. One that it did not come to is 0.
type ExecEvent struct {
	Outcome string // one of Outcomes
	// InContainer says that it got a container, Cold that this had to be made for it, and Ahead that its shell had
	// started before.
	InContainer, Cold, Ahead bool
	// Decide is the time to check the call and to find out what it may see; Container to find or make its
	// container; Start to hand the command to the agent; Run from then to its end; and Total all of it.
	Decide, Container, Start, Run, Total time.Duration
}

// What may become of an exec.
const (
	outcomeOK       = "ok"       // exited with 0
	outcomeFailed   = "failed"   // exited with another code, by a signal, or could not be started
	outcomeTimedOut = "timedOut" // was ended by its timeout
	outcomeRefused  = "refused"  // was not run: the call's fault
	outcomeLost     = "lost"     // its container was lost while it ran
	outcomeCanceled = "canceled" // was ended because the caller had gone, or the service stopped
	outcomeError    = "error"    // could not be run: Docker's fault, or the host's
)

// Outcomes are all of them.
var Outcomes = []string{outcomeOK, outcomeFailed, outcomeTimedOut, outcomeRefused, outcomeLost, outcomeCanceled, outcomeError}

// execWatch takes the times of one exec.
type execWatch struct {
	ended func(ExecEvent) // nil for nobody
	begun time.Time
	event ExecEvent
}

func (s *Service) watchExec() *execWatch {
	w := &execWatch{begun: time.Now()}
	if observe := s.cfg().ObserveExec; observe != nil {
		w.ended = observe()
	}
	return w
}

func (w *execWatch) decided() { w.event.Decide = time.Since(w.begun) }

func (w *execWatch) ran(r dockerexec.Result) {
	w.event.Container, w.event.Start, w.event.Run = r.Timing.Container, r.Timing.Start, r.Timing.Run
	w.event.InContainer, w.event.Cold, w.event.Ahead = r.InContainer, r.Cold, r.Ahead
}

func (w *execWatch) end(ctx context.Context, r Result, err error) {
	if w.ended == nil {
		return
	}
	w.event.Total = time.Since(w.begun)
	w.event.Outcome = outcome(ctx, r, err)
	w.ended(w.event)
}

func outcome(ctx context.Context, r Result, err error) string {
	switch {
	case err == nil && r.TimedOut:
		return outcomeTimedOut
	case err == nil && r.Failed():
		return outcomeFailed
	case err == nil:
		return outcomeOK
	case ctx.Err() != nil, cerrdefs.IsUnavailable(err):
		return outcomeCanceled
	case errors.Is(err, dockerexec.ErrSession):
		return outcomeLost
	case cerrdefs.IsInvalidArgument(err), cerrdefs.IsPermissionDenied(err), cerrdefs.IsNotFound(err), cerrdefs.IsConflict(err),
		cerrdefs.IsResourceExhausted(err):
		return outcomeRefused
	default:
		return outcomeError
	}
}
