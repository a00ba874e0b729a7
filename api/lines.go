package api

import (
	"bytes"
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
)

const (
	// keepAlive is how long a stream is silent at most, so that nothing on its way takes it for dead.
	keepAlive = 15 * time.Second
	// lastWrite is how long a caller may take to read what is being sent when the service stops.
	lastWrite = time.Second
	// maxGathered is how many bytes of a stream are gathered before they are sent.
	maxGathered = 16 << 10
)

// lineStream is an answer of lines that has no end of its own. It is for one goroutine at a time.
type lineStream struct {
	to      http.ResponseWriter
	control *http.ResponseController
	lines   bytes.Buffer
	end     context.CancelFunc // of the context that came with it
	watch   sync.WaitGroup
}

// openStream begins an answer. Its context ends with the caller, the caller's token and the service; the handler closes the
// stream before it returns.
func (s *server) openStream(w http.ResponseWriter, req *http.Request, kind string) (context.Context, *lineStream) {
	ctx, end := context.WithCancel(req.Context())
	stream := &lineStream{to: w, control: http.NewResponseController(w), end: end}
	stream.watch.Go(func() {
		select {
		case <-s.cfg.Stopping:
		case <-ctx.Done():
			if req.Context().Err() == nil {
				return // the handler is through
			}
		}
		_ = stream.control.SetWriteDeadline(time.Now().Add(lastWrite)) // who reads nothing is not waited for
		end()
	})
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Connection", "close") // the deadline would outlive the answer
	w.WriteHeader(http.StatusOK)
	return ctx, stream
}

func (s *lineStream) close() {
	s.end()
	s.watch.Wait()
}

// send sends a line for each of the events.
func (s *lineStream) send(events ...any) error {
	for _, event := range events {
		if err := s.room(); err != nil {
			return err
		}
		if err := json.MarshalWrite(&s.lines, event); err != nil {
			return err
		}
		s.lines.WriteByte('\n')
	}
	return s.flush()
}

// room sends what was gathered where that is much.
func (s *lineStream) room() (err error) {
	if s.lines.Len() > maxGathered {
		_, err = s.lines.WriteTo(s.to)
	}
	return err
}

// keepAlive sends an empty line, which readers of JSON skip.
func (s *lineStream) keepAlive() error {
	s.lines.WriteByte('\n')
	return s.flush()
}

func (s *lineStream) flush() error {
	if _, err := s.lines.WriteTo(s.to); err != nil {
		return err
	}
	return s.control.Flush()
}
