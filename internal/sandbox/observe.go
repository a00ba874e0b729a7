package sandbox

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/events"
)

// CallEvent is something that becomes of an exec.
type CallEvent struct {
	// ID is the same in all events of one exec, and no other's of this service.
	ID uint64
	// What is CallBegan, CallRunning or CallEnded. ExecEvent is as far as it has come.
	What string
	// Sandbox is empty where there is none of that name. Command, Grants and Network are what the caller wrote, cut.
	Sandbox, Command, Grants, Network string
	// In is the name of its container, when the call has been decided.
	In string
	ExecEvent
}

// The stages of an exec: it was asked for, its command is being started, and all is over.
const (
	CallBegan   = "began"
	CallRunning = "running"
	CallEnded   = "ended"
)

// ExecEvent is what became of an exec, and how long its phases took. One that it did not come to is 0.
type ExecEvent struct {
	Outcome string // one of Outcomes
	// InContainer says that it got a container, Cold that this had to be made for it, Pooled that it came from the pool, Thawed
	// that it was frozen, and Ahead that its shell had started before.
	InContainer, Cold, Pooled, Thawed, Ahead bool
	// ExitCode and Signal are those of a command that has ended.
	ExitCode int
	Signal   syscall.Signal
	// FirstByte is when its first output came; 0 where there was none.
	FirstByte time.Duration
	// Decide is the time to check the call and to find out what it may see; Container to find or make its
	// container; Start to hand the command to the agent; Run from then to its end; and Total all of it.
	Decide, Container, Start, Run, Total time.Duration
}

// Way says how the exec came to its container: cold, pooled, frozen or warm; empty for none.
func (e ExecEvent) Way() string {
	switch {
	case !e.InContainer:
		return ""
	case e.Cold:
		return "cold"
	case e.Pooled:
		return "pooled"
	case e.Thawed:
		return "frozen"
	default:
		return "warm"
	}
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

// calls numbers execs.
var calls atomic.Uint64

// execWatch measures one exec and publishes its events.
type execWatch struct {
	to    *events.Stream
	user  string
	begun time.Time
	event CallEvent
	// firstByte is when output began, in nanoseconds after begun.
	firstByte atomic.Int64
	last      lastOutput
}

func (s *Service) watchExec(box Sandbox, r Request) *execWatch {
	w := &execWatch{to: s.cfg().Events, begun: time.Now(), user: box.User.id}
	if w.to != nil {
		w.event = CallEvent{
			ID: calls.Add(1), What: CallBegan, Sandbox: box.ID.id, Command: commandText(r),
			Grants: listText(r.Permissions), Network: listText(slices.Concat(r.PackageManagers, r.AllowedDomains)),
		}
		w.publish()
	}
	return w
}

// listText is a list for an event: the begin of it, if it is long.
func listText(list []string) string {
	const most = 200
	text := strings.Join(list[:min(len(list), most)], " ")
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

func (w *execWatch) publish() { w.to.Publish(events.Call, w.user, w.event) }

func (w *execWatch) decided(container string) {
	w.event.Decide, w.event.In = time.Since(w.begun), container
}

func (w *execWatch) running() {
	w.event.What = CallRunning
	w.publish()
}

func (w *execWatch) ran(r dockerexec.Result) {
	w.event.Container, w.event.Start, w.event.Run = r.Timing.Container, r.Timing.Start, r.Timing.Run
	w.event.InContainer, w.event.Cold, w.event.Ahead, w.event.Thawed = r.InContainer, r.Cold, r.Ahead, r.Thawed
}

func (w *execWatch) end(ctx context.Context, r Result, err error) {
	w.event.What, w.event.Total = CallEnded, time.Since(w.begun)
	w.event.FirstByte = time.Duration(w.firstByte.Load())
	w.event.Outcome, w.event.ExitCode, w.event.Signal = outcome(ctx, r, err), r.ExitCode, r.Signal
	w.publish()
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
