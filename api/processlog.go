package api

import (
	"context"
	"fmt"
	"net/http"
	"time"
	"unicode/utf8"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/utf8cut"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

func (s *server) processLog(w http.ResponseWriter, req *http.Request) error {
	q, follow, err := readLogQuery(req)
	if err != nil {
		return err
	}
	if follow {
		return s.followProcessLog(w, req, q)
	}
	part, err := s.service.ReadProcessLog(req.Context(), req.PathValue("id"),
		req.PathValue("processId"), q)
	if err != nil {
		return err
	}
	if err := s.memory.take(2 * len(part.Data)); err != nil { // it is copied as text or base64
		return err
	}
	s.answerLog(w, part)
	return nil
}

func (s *server) answerLog(w http.ResponseWriter, part process.LogPart) {
	data, encoding := encodePart(wholeBegin(part))
	s.answerTexts(w, []largeText{{"data", data, "encoding", encoding}}, struct {
		Truncated bool   `json:"truncated"`
		Notice    string `json:"notice,omitempty"`
	}{part.Truncated, part.Notice}) // the rest of a types.ProcessLog
}

// wholeBegin returns a part's data. If the data begins in the middle of a character, the rest of
// that character is dropped, so that text stays text.
func wholeBegin(part process.LogPart) []byte {
	data := part.Data
	if part.Truncated {
		data = utf8cut.Begin(data)
	}
	if !utf8.Valid(data[:utf8cut.Whole(data)]) {
		return part.Data
	}
	return data
}

// The most that a caller may ask for of a log.
const (
	maxLogLines = 10_000
	maxLogBytes = 1 << 20
)

func readLogQuery(req *http.Request) (q process.LogQuery, follow bool, err error) {
	values, err := query(req, "lines", "bytes", "from", "follow")
	if err != nil {
		return q, false, err
	}
	lines, err := number(values, "lines", 0, 1, maxLogLines)
	if err != nil {
		return q, false, err
	}
	q.Lines = int(lines)
	if q.Bytes, err = number(values, "bytes", 0, 1, maxLogBytes); err != nil {
		return q, false, err
	}
	switch from := values["from"]; from {
	case "", "end":
	case "start":
		q.First = true
	default:
		return q, false, errs.Invalid("from %q is neither start nor end", from)
	}
	follow, err = boolean(values, "follow")
	if err == nil && follow && q.First && (lines > 0 || q.Bytes > 0) {
		err = errs.Invalid(
			"lines and bytes do not go with from=start and follow=true, which is everything from the first line on")
	}
	return q, follow, err
}

// followProcessLog answers with the end of a log and then with new data, until the process has
// ended for good, the caller goes or the service stops.
func (s *server) followProcessLog(w http.ResponseWriter, req *http.Request,
	q process.LogQuery) error {
	id, processID := req.PathValue("id"), req.PathValue("processId")
	if _, err := s.service.Process(id, processID); err != nil {
		return err
	}
	return s.relayLog(w, req,
		func(ctx context.Context, each func(process.LogPart) error) error {
			return s.service.FollowProcessLog(ctx, id, processID, q, each)
		},
		func(ctx context.Context, ended error) ([]any,
			error) {
			return s.lastOfLog(ctx, id, processID, ended)
		})
}

// relayLog sends what follow delivers, as it comes, and then what last returns for follow's end.
func (s *server) relayLog(w http.ResponseWriter, req *http.Request,
	follow func(ctx context.Context, each func(process.LogPart) error) error,
	last func(ctx context.Context, ended error) ([]any, error),
) error {
	ctx, stream := s.openStream(w, req, ndjson)
	defer stream.close()
	var text logText
	events, over := make(chan []any), make(chan error, 1)
	go func() {
		over <- follow(ctx, func(part process.LogPart) error {
			select {
			case events <- text.events(part):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}()
	quiet := time.NewTimer(keepAlive)
	for err := stream.flush(); ; quiet.Reset(keepAlive) {
		if err != nil { // the caller has gone
			stream.end()
			<-over
			return nil
		}
		select {
		case next := <-events:
			err = stream.send(next...)
		case <-quiet.C:
			err = stream.keepAlive()
		case ended := <-over:
			lines, err := last(ctx, ended)
			_ = stream.send(append(text.flush(), lines...)...)
			return err
		}
	}
}

// lastOfLog says why a log has ended. It says nothing to a caller who has gone, nor when the
// service stops, because the process may go on.
func (s *server) lastOfLog(ctx context.Context, id, processID string, ended error) ([]any, error) {
	var end types.ProcessLogEnd
	if ended == nil {
		record, err := s.service.Process(id, processID)
		if err == nil {
			end = types.ProcessLogEnd{Status: types.ProcessState(record.State()),
				ExitCode: record.ExitCode, Signal: orNull(record.Signal)}
		} else if !cerrdefs.IsNotFound(err) { // not found means that it has been removed
			ended = fmt.Errorf("cannot say how the process ended: %w", err)
		}
	}
	switch {
	case ended == nil:
		end.End = true
		return []any{types.ProcessLogEvent{ProcessLogEnd: &end}}, nil
	case ctx.Err() != nil || cerrdefs.IsUnavailable(ended):
		return nil, nil
	default:
		failure, _ := s.failure(ended)
		return []any{types.ProcessLogEvent{Error: &failure}}, reportedError{ended}
	}
}

// logText converts parts of a log to events. It keeps no part's memory.
type logText struct{ stream textStream }

func (t *logText) events(part process.LogPart) []any {
	var list []any
	if part.Notice != "" {
		list = append(t.flush(), types.ProcessLogEvent{Notice: utf8Text(part.Notice)})
	}
	return append(list, dataEvents(t.stream.next(wholeBegin(part)))...)
}

// flush returns what is left of an incomplete character.
func (t *logText) flush() []any {
	rest := t.stream.rest
	t.stream.rest = nil
	return dataEvents(rest)
}

func dataEvents(data []byte) []any {
	if len(data) == 0 {
		return nil
	}
	var event types.ProcessLogEvent
	event.Data, event.Encoding = encodePart(data)
	return []any{event}
}
