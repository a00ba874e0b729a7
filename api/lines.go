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
	// keepAlive is the longest silence of a stream, so that nothing along the way takes it for
	// dead.
	keepAlive = 15 * time.Second
	// lastWrite is how long a caller may take to read the data being sent when the service stops.
	lastWrite = time.Second
	// maxGathered is how many bytes of a stream are collected before they are sent.
	maxGathered = 16 << 10
)

// lineStream is an endless answer of lines. Only one goroutine may use it at a time.
type lineStream struct {
	to      http.ResponseWriter
	control *http.ResponseController
	lines   bytes.Buffer
	end     context.CancelFunc // of the context returned with it
	watch   sync.WaitGroup
}

// openStream begins an answer. Its context ends when the caller goes, its token ends, or the
// service stops. The handler closes the stream before it returns.
func (s *server) openStream(w http.ResponseWriter, req *http.Request,
	kind string) (context.Context, *lineStream) {
	ctx, end := context.WithCancel(req.Context())
	stream := &lineStream{to: w, control: http.NewResponseController(w), end: end}
	stream.watch.Go(func() {
		select {
		case <-s.cfg.Stopping:
		case <-ctx.Done():
			if req.Context().Err() == nil {
				return // the handler has finished
			}
		}
		_ = stream.control.SetWriteDeadline(time.Now().Add(lastWrite)) // do not wait for a caller who reads nothing
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

// send sends one line per event.
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

// room sends the collected data if there is much of it.
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
