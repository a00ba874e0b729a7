package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/calls"
	"github.com/daycare-run/sandbox/internal/cluster/changes"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// serverSent is the media type of server-sent events.
const serverSent = "text/event-stream"

// gather is how long events are collected before they are sent, so that a flood of them is sent in
// few pieces.
const gather = 100 * time.Millisecond

// events answers with events, from a given one or from now on, until the caller goes or the service
// stops.
func (s *server) events(w http.ResponseWriter, req *http.Request) error {
	stream, scope := s.service.Events()
	if stream == nil {
		return fmt.Errorf("there are no events here: %w", cerrdefs.ErrNotFound)
	}
	filter, after, gap, err := readEventQuery(req, stream)
	if err != nil {
		return err
	}
	filter.Scope = scope
	leave, err := s.place(s.following.events, "events")
	if err != nil {
		return err
	}
	defer leave()
	follower := stream.Follow(filter, after)
	ctx, to := s.openStream(w, req, serverSent)
	defer to.close()
	begin := []types.ServiceEvent{{ID: eventID(stream, after), Time: time.Now().UTC(),
		Kind: types.ServiceOpen}}
	if gap {
		begin = append(begin, types.ServiceEvent{ID: eventID(stream, after), Time: time.Now().UTC(),
			Kind: types.ServiceGap})
	}
	for err = to.sendEvents(begin); err == nil && ctx.Err() == nil; { // an error means that the caller has gone
		quiet, done := context.WithTimeout(ctx, keepAlive)
		list, gap, silence := follower.Next(quiet)
		done()
		if silence != nil {
			err = to.comment()
			continue
		}
		var told []types.ServiceEvent
		if gap {
			told = append(told, types.ServiceEvent{ID: eventID(stream, max(follower.Place(), 1)-1),
				Time: time.Now().UTC(), Kind: types.ServiceGap})
		}
		for _, e := range list {
			told = append(told, serviceEvent(stream, e))
		}
		err = to.sendEvents(told)
		if len(list) < events.Batch { // a full batch means that more are waiting
			select {
			case <-time.After(gather):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// readEventQuery reads the query. gap reports whether the last event that the caller saw came from
// another run of the service.
func readEventQuery(req *http.Request,
	stream *events.Stream) (filter events.Filter, after uint64, gap bool, err error) {
	values, err := query(req, "userId", "kind", "replay")
	if err != nil {
		return filter, 0, false, err
	}
	if value, given := values["userId"]; given {
		user, err := ids.ParseUser(value)
		if err != nil {
			return filter, 0, false, err
		}
		filter.User = user.String()
	}
	if value, given := values["kind"]; given {
		for name := range strings.SplitSeq(value, ",") {
			kind, known := events.ParseKind(name)
			if !known {
				return filter, 0, false, unreadable("kind", name,
					"not one of "+strings.Join(events.Names(), ", "))
			}
			filter.Kinds = append(filter.Kinds, kind)
		}
	}
	replay, err := boolean(values, "replay")
	if err != nil {
		return filter, 0, false, err
	}
	if !replay {
		after = stream.Now()
	}
	last := req.Header.Get("Last-Event-ID")
	if last == "" {
		return filter, after, false, nil
	}
	epoch, number, _ := strings.Cut(last, "-")
	seen, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return filter, 0, false, unreadable("Last-Event-ID", last, "not the id of an event")
	}
	if epoch != stream.Epoch {
		return filter, 0, true, nil
	}
	return filter, seen, false, nil
}

func eventID(stream *events.Stream, seq uint64) string {
	return stream.Epoch + "-" + strconv.FormatUint(seq, 10)
}

func serviceEvent(stream *events.Stream, e events.Event) types.ServiceEvent {
	told := types.ServiceEvent{ID: eventID(stream, e.Seq), Time: e.Time.UTC(),
		Kind: types.ServiceKind(e.Kind.String()), UserID: e.User}
	switch detail := e.Detail.(type) {
	case calls.Event:
		told.Call = callEvent(detail)
	case dockerexec.Summary:
		told.Container = &types.ContainerEvent{
			Name: detail.Name, Fingerprint: string(detail.Fingerprint), Runtime: detail.Runtime,
			State: detail.State, CreatedAt: detail.Since.UTC(),
		}
	case process.Changed:
		told.Process = &types.ProcessEvent{ID: detail.ID, SandboxID: detail.Sandbox,
			Name: detail.Name, Status: detail.Status, Reason: detail.Reason}
	case decisions.Decision:
		d := decision(detail)
		told.Decision = &d
	case changes.Node:
		told.Node = &types.NodeEvent{Name: detail.Name, State: detail.State}
	case changes.Seat:
		told.Seat = &types.SeatEvent{Node: detail.Host, From: detail.From}
	}
	return told
}

func callEvent(e calls.Event) *types.CallEvent {
	call := &types.CallEvent{
		ID: e.ID, Phase: e.What, SandboxID: e.Sandbox, Command: e.Command, Grants: e.Grants,
		Network: e.Network, Container: e.In,
	}
	if e.What != calls.Ended {
		return call
	}
	call.Outcome, call.Reason, call.Way = e.Outcome, e.Reason, e.Way()
	call.StartMs, call.TotalMs = milliseconds(e.Decide+e.Exec.Container+e.Start),
		milliseconds(e.Total)
	switch e.Outcome {
	case "ok", "failed", "timedOut":
		if e.Signal != 0 {
			call.Signal = signalName(e.Signal)
		} else {
			call.ExitCode = &e.ExitCode
		}
	}
	return call
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// sendEvents sends events as server-sent events.
func (s *lineStream) sendEvents(list []types.ServiceEvent) error {
	for _, e := range list {
		if err := s.room(); err != nil {
			return err
		}
		s.lines.WriteString("id: " + e.ID + "\nevent: " + string(e.Kind) + "\ndata: ")
		if err := json.MarshalWrite(&s.lines, e, jsontext.AllowInvalidUTF8(true)); err != nil {
			return err
		}
		s.lines.WriteString("\n\n")
	}
	return s.flush()
}

// comment sends a comment, which readers of server-sent events skip.
func (s *lineStream) comment() error {
	s.lines.WriteString(":\n\n")
	return s.flush()
}
