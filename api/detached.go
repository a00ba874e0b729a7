package api

import (
	"context"
	"math"
	"net/http"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/attach"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// reattach is a caller who comes back to a command, over a WebSocket.
func (s *server) reattach(w http.ResponseWriter, req *http.Request) error {
	values, err := query(req, "offset")
	if err != nil {
		return err
	}
	offset, err := number(values, "offset", 0, 0, math.MaxInt64) // how many bytes of output the caller has had
	if err != nil {
		return err
	}
	e, err := s.service.DetachedExec(req.PathValue("id"), req.PathValue("execId"))
	if err != nil {
		return err
	}
	if err := wantsWebSocket(req, "GET …/execs/{execId} is for WebSockets; GET …/execs tells how it is"); err != nil {
		return err
	}
	return s.converse(w, req, func(ctx, writing context.Context, a *attached, hangUp func(error)) (*types.Result, error) {
		return a.watch(ctx, writing, e, offset, hangUp)
	})
}

// watch shows a caller a command that goes on without it, until the command or the caller ends. It is a talk.
func (a *attached) watch(ctx, writing context.Context, e *attach.Exec[sandbox.Result], offset int64, hangUp func(why error)) (*types.Result, error) {
	attachment, err := e.Attach(offset)
	if err != nil {
		return nil, err
	}
	defer attachment.Close()
	go func() { hangUp(a.receive(ctx, attachment)) }()
	for {
		event, err := attachment.Next(ctx)
		switch {
		case err != nil:
		case event.Ended && event.Err != nil:
			err = event.Err
		case event.Ended:
			exit := result(event.Result)
			return &exit, nil
		case event.Taken > 0:
			err = a.event(writing, types.Event{Type: types.EventStdin, Bytes: event.Taken})
		case len(event.Data) > 0:
			err = a.output(writing, event.Stream, event.Data)
		default:
			err = a.event(writing, wireEvent(e.ID, event))
		}
		if err != nil {
			return nil, err
		}
	}
}

// wireEvent converts an event that is neither output nor the end.
func wireEvent(execID string, event attach.Event[sandbox.Result]) types.Event {
	if event.Refused != nil {
		return refusal(*event.Refused)
	}
	return types.Event{Type: types.EventStart, ExecID: execID, Lost: event.Lost}
}

// streamDetached is what stream is, of a command that goes on without its caller.
func (s *server) streamDetached(w http.ResponseWriter, req *http.Request, r sandbox.Request) error {
	e, err := s.service.StartExec(req.Context(), req.PathValue("id"), r, false)
	if err != nil {
		return err
	}
	attachment, err := e.Attach(0)
	if err != nil {
		return err
	}
	defer attachment.Close()
	stream := newEventStream(s, w, req)
	defer stream.close()
	for {
		event, err := attachment.Next(req.Context())
		switch {
		case err != nil:
		case event.Ended:
			return stream.finish(event.Result, event.Err)
		case event.Taken > 0: // nobody sends any
		case len(event.Data) > 0:
			err = stream.output(event.Stream, event.Data)
		default:
			err = stream.send(wireEvent(e.ID, event))
		}
		if err != nil {
			return stream.finish(sandbox.Result{}, err)
		}
	}
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
