package api

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// stream answers with events as they happen. A fault before the command starts is an ordinary
// error.
func (s *server) stream(w http.ResponseWriter, req *http.Request, r sandbox.Request) error {
	stream := newEventStream(s, w, req)
	defer stream.close()
	in, execID, remove := s.streamed.add(req.PathValue("id"))
	defer remove()
	r.Signals = in.Signals()
	r.Started = func() { _ = stream.send(types.Event{Type: types.EventStart, ExecID: execID}) }
	r.Refused = func(line decisions.Summary) { _ = stream.send(refusal(line)) }
	ended, err := s.service.Exec(req.Context(), req.PathValue("id"), r, stream.output)
	return stream.finish(ended, err)
}

// eventStream is a streamed exec's answer, which begins with the first event. It is safe for
// concurrent use.
type eventStream struct {
	of      *server
	to      http.ResponseWriter
	control *http.ResponseController
	media   string        // ndjson or types.Frames
	resumes bool          // the caller may come back, and says then how many bytes it has: what it gets is in order
	texts   [2]textStream // for one goroutine only

	mu    sync.Mutex // held while an event is sent
	line  []byte     // the frame or line being sent
	begun bool
	quiet *time.Timer // sends a keepalive; nil before the first event
	ended bool        // to may no longer be used
}

func newEventStream(of *server, w http.ResponseWriter, req *http.Request) *eventStream {
	s := &eventStream{of: of, to: w, control: http.NewResponseController(w), media: ndjson}
	if strings.Contains(req.Header.Get("Accept"), types.Frames) {
		s.media = types.Frames
	}
	return s
}

// hasBegun reports whether an error can no longer be an ordinary answer.
func (s *eventStream) hasBegun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

// close is called before the handler returns.
func (s *eventStream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.quiet != nil {
		s.quiet.Stop()
	}
}

// send blocks while the caller is slow.
func (s *eventStream) send(e types.Event) error {
	text, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("cannot encode an event: %w", err)
	}
	return s.write(types.ChannelEvent, text)
}

// sendInOrder sends an event. Before one that tells of lost output comes all output that was before
// that.
func (s *eventStream) sendInOrder(e types.Event) error {
	if e.Type == types.EventLost {
		for _, stream := range []session.Stream{session.Stdout, session.Stderr} {
			if err := s.rest(stream); err != nil {
				return err
			}
		}
	}
	return s.send(e)
}

// write sends a frame, or a line.
func (s *eventStream) write(channel byte, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil
	}
	if !s.begun {
		s.begun = true
		s.to.Header().Set("Content-Type", s.media)
		s.to.WriteHeader(http.StatusOK)
		s.quiet = time.AfterFunc(keepAlive, func() {
			_ = s.send(types.Event{Type: types.EventKeepAlive})
		})
	}
	if s.media == types.Frames {
		s.line = append(s.line[:0], channel, 0, 0, 0)
		s.line = append(binary.BigEndian.AppendUint32(s.line, uint32(len(data))), data...)
	} else {
		s.line = append(append(s.line[:0], data...), '\n')
	}
	if _, err := s.to.Write(s.line); err != nil {
		return err
	}
	s.quiet.Reset(keepAlive)
	return s.control.Flush()
}

// output sends a command's output; as JSON, without an incomplete character at its end.
func (s *eventStream) output(stream session.Stream, data []byte) error {
	if s.resumes {
		// What waits for the end of a character came before this.
		if err := s.rest(1 - stream); err != nil {
			return err
		}
	}
	if s.media != types.Frames {
		data = s.texts[stream].next(data)
	}
	return s.part(stream, data)
}

// rest sends the incomplete character that output has kept of a stream.
func (s *eventStream) rest(stream session.Stream) error {
	rest := s.texts[stream].rest
	s.texts[stream].rest = nil
	return s.part(stream, rest)
}

func (s *eventStream) part(stream session.Stream, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	event, channel := types.Event{Type: types.EventStdout}, types.ChannelStdout
	if stream == session.Stderr {
		event.Type, channel = types.EventStderr, types.ChannelStderr
	}
	if s.media == types.Frames {
		return s.write(channel, data)
	}
	event.Data, event.Encoding = encodePart(data)
	return s.send(event)
}

// finish sends how the command ended, or returns the fault that came before its start.
func (s *eventStream) finish(ended sandbox.Result, err error) error {
	if err != nil && !s.hasBegun() {
		return err
	}
	for _, stream := range []session.Stream{session.Stdout, session.Stderr} {
		if rest := s.rest(stream); err == nil {
			err = rest
		}
	}
	if err == nil && ended.CommandFault != "" {
		err = s.part(session.Stderr, []byte(ended.CommandFault+"\n"))
	}
	if err != nil {
		failure, _ := s.of.failure(err)
		_ = s.send(types.Event{Type: types.EventError, Error: &failure})
		return reportedError{err}
	}
	exit := result(ended)
	_ = s.send(types.Event{Type: types.EventExit, Result: &exit})
	return nil
}

// refusal converts what a command tried to reach and could not.
func refusal(line decisions.Summary) types.Event {
	return types.Event{Type: types.EventEgress, Refusal: &refusals([]decisions.Summary{line})[0]}
}
