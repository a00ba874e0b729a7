package sandbox

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/calls"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/warm"
)

// lastCall is the number of the last exec.
var lastCall atomic.Uint64

// execWatch measures one exec and publishes its events.
type execWatch struct {
	to    *events.Stream
	user  string
	begun time.Time
	event calls.Event
	// firstByte is when output began, in nanoseconds after begun.
	firstByte atomic.Int64
	last      lastOutput
}

func (s *Service) watchExec(box Sandbox, r Request) *execWatch {
	w := &execWatch{to: s.cfg().Events, begun: time.Now(), user: box.User.String()}
	if w.to != nil {
		w.event = calls.Event{
			ID: lastCall.Add(1), What: calls.Began, Sandbox: box.ID.String(),
			Command: commandText(r), Grants: listText(r.Permissions),
			Network: listText(slices.Concat(r.PackageManagers, r.AllowedDomains)),
		}
		if r.InSandbox {
			w.event.Grants, w.event.Network = "in:sandbox",
				listText(slices.Concat(box.Presets, box.Domains))
		}
		if r.Process != "" {
			w.event.Grants = "process:" + listText([]string{r.Process})
		}
		w.publish()
	}
	return w
}

// listText returns a list for an event: its beginning, if it is long.
func listText(list []string) string {
	const limit = 200
	text := strings.Join(list[:min(len(list), limit)], " ")
	if len(text) > limit {
		text = text[:limit] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

func (w *execWatch) publish() { w.to.Publish(events.Call, w.user, w.event) }

func (w *execWatch) decided(container string) {
	w.event.Decide, w.event.In = time.Since(w.begun), container
}

func (w *execWatch) running() {
	w.event.What = calls.Running
	w.publish()
}

func (w *execWatch) ran(r warm.Result) {
	w.event.Container, w.event.Start, w.event.Run = r.Waited, r.Timing.Start, r.Timing.Run
	w.event.InContainer, w.event.Cold, w.event.Ahead, w.event.Thawed = r.InContainer, r.Cold,
		r.Ahead, r.Thawed
}

func (w *execWatch) end(ctx context.Context, r Result, err error) {
	w.event.What, w.event.Total = calls.Ended, time.Since(w.begun)
	w.event.FirstByte = time.Duration(w.firstByte.Load())
	w.event.Outcome, w.event.ExitCode, w.event.Signal = outcome(ctx, r, err), r.ExitCode, r.Signal
	if r.Exhausted != nil {
		w.event.Reason = r.Exhausted.Error()
	}
	w.publish()
}

func outcome(ctx context.Context, r Result, err error) string {
	switch {
	case err == nil && r.TimedOut:
		return calls.TimedOut
	case err == nil && r.Failed():
		return calls.Failed
	case err == nil:
		return calls.OK
	case ctx.Err() != nil, cerrdefs.IsUnavailable(err):
		return calls.Canceled
	case errors.Is(err, session.ErrBroken):
		return calls.Lost
	case cerrdefs.IsInvalidArgument(err), cerrdefs.IsPermissionDenied(err),
		cerrdefs.IsNotFound(err), cerrdefs.IsConflict(err),
		cerrdefs.IsResourceExhausted(err):
		return calls.Refused
	default:
		return calls.Error
	}
}
