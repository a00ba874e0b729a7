package api

import (
	"context"
	"math"
	"net/http"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/workload/attach"
)

// reattach connects a caller to a running command again, over a WebSocket.
func (s *server) reattach(w http.ResponseWriter, req *http.Request) error {
	values, err := query(req, "offset")
	if err != nil {
		return err
	}
	offset, err := number(values, "offset", 0, 0, math.MaxInt64) // how many bytes of output the caller already has
	if err != nil {
		return err
	}
	e, err := s.service.DetachedExec(req.PathValue("id"), req.PathValue("execId"))
	if err != nil {
		return err
	}
	if err := wantsWebSocket(req,
		"GET …/execs/{execId} is for WebSockets; GET …/execs reports its state"); err != nil {
		return err
	}
	return s.converse(w, req,
		func(ctx, writing context.Context, a *attached, hangUp func(error)) (*types.Result, error) {
			return a.watch(ctx, writing, e, offset, hangUp)
		})
}

// watch connects a caller to a detached command until either of them ends, as a conversation.
func (a *attached) watch(ctx, writing context.Context, e *attach.Exec[sandbox.Result], offset int64,
	hangUp func(why error)) (*types.Result, error) {
	attachment, err := e.Attach(offset)
	if err != nil {
		return nil, err
	}
	defer attachment.Close()
	go func() { hangUp(a.receive(ctx, attachment)) }()
	ended, err := relay(ctx, e.ID, attachment,
		func(stream session.Stream, data []byte) error { return a.output(writing, stream, data) },
		func(event types.Event) error { return a.event(writing, event) })
	if err != nil {
		return nil, err
	}
	exit := result(ended)
	return &exit, nil
}

// relay passes on a command's events, and returns how it ended.
func relay(ctx context.Context, execID string, from *attach.Attachment[sandbox.Result],
	output session.Output, send func(types.Event) error) (sandbox.Result, error) {
	for {
		event, err := from.Next(ctx)
		switch {
		case err != nil:
		case event.Ended:
			return event.Result, event.Err
		case event.Taken > 0:
			err = send(types.Event{Type: types.EventStdin, Bytes: event.Taken})
		case len(event.Data) > 0:
			err = output(event.Stream, event.Data)
		case event.Refused != nil:
			err = send(refusal(*event.Refused))
		case event.Lost > 0:
			err = send(types.Event{Type: types.EventLost, Lost: event.Lost})
		default:
			err = send(types.Event{Type: types.EventStart, ExecID: execID})
		}
		if err != nil {
			return sandbox.Result{}, err
		}
	}
}

// startDetached starts a command that keeps the request's memory to its end: its stdin and
// environment last as long.
func (s *server) startDetached(ctx context.Context, id string, r sandbox.Request,
	stdin bool) (*attach.Exec[sandbox.Result], error) {
	kept := s.memory.handOver()
	r.Ended = kept.release
	e, err := s.service.StartExec(ctx, id, r, stdin)
	if err != nil {
		kept.release()
	}
	return e, err
}

// streamDetached is stream for a command that goes on without its caller.
func (s *server) streamDetached(w http.ResponseWriter, req *http.Request, r sandbox.Request) error {
	e, err := s.startDetached(req.Context(), req.PathValue("id"), r, false)
	if err != nil {
		return err
	}
	attachment, err := e.Attach(0)
	if err != nil {
		return err
	}
	defer attachment.Close()
	stream := newEventStream(s, w, req)
	stream.resumes = true
	defer stream.close()
	return stream.finish(relay(req.Context(), e.ID, attachment, stream.output, stream.sendInOrder)) // nobody sends stdin
}

func (s *server) detachedExecs(req *http.Request) (types.DetachedExecList, error) {
	execs, err := s.service.DetachedExecs(req.PathValue("id"))
	list := types.DetachedExecList{Execs: []types.DetachedExec{}}
	for _, e := range execs {
		list.Execs = append(list.Execs, detachedExec(e))
	}
	return list, err
}

func (s *server) killExec(req *http.Request, _ struct{}) (types.DetachedExec, error) {
	e, err := s.service.DetachedExec(req.PathValue("id"), req.PathValue("execId"))
	if err != nil {
		return types.DetachedExec{}, err
	}
	err = e.Kill(req.Context())
	return detachedExec(e), err
}

func detachedExec(e *attach.Exec[sandbox.Result]) types.DetachedExec {
	status := e.Status()
	out := types.DetachedExec{
		ExecID: status.ID, Command: status.Text, TTY: status.Terminal, Attached: status.Attached,
		OutputBytes: status.Output, CreatedAt: status.Begun.UTC(),
	}
	if status.Ended.IsZero() {
		return out
	}
	ended := status.Ended.UTC()
	out.EndedAt = &ended
	if status.Err != nil {
		failure, _ := classify(status.Err)
		out.Error = &failure
	} else {
		exit := result(status.Result)
		out.Result = &exit
	}
	return out
}
