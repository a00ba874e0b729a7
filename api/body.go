package api

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/budget"
)

// Who sends a body may be behind by so long; each byte earns its part of a second.
const (
	bodyDelay = 10 * time.Second
	bodyRate  = 1 << 10 // bytes a second
)

// memoryOf is how many bytes of requests all callers may have here at a time: some of the largest of each.
func memoryOf(maxRequest int64) *budget.Pool {
	return budget.NewPool(int(max(256<<20, 16*maxRequest)), 0)
}

// memory is what one request has of the memory that callers share: its body, or messages, until it is answered.
type memory struct {
	of     *budget.Pool
	holder string // the caller
	bytes  int
}

// take counts n bytes more. The error is of class ResourceExhausted.
func (m *memory) take(n int) error {
	if !m.of.Take(m.holder, n) {
		return fmt.Errorf("the requests of %s have as much memory as they may: try again when one has been answered: %w", m.holder, cerrdefs.ErrResourceExhausted)
	}
	m.bytes += n
	return nil
}

// release gives all back.
func (m *memory) release() {
	if m.bytes > 0 {
		m.of.Give(m.holder, m.bytes)
	}
	m.bytes = 0
}

// reader counts what is read, until it is released.
func (m *memory) reader(from io.Reader) io.Reader { return memoryReader{from, m} }

type memoryReader struct {
	io.Reader
	memory *memory
}

func (r memoryReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		if full := r.memory.take(n); full != nil {
			return 0, full
		}
	}
	return n, err
}

// bound is a body that has to come in time. It is bounded also when nobody reads it: the server takes what
// is left of it before it goes on.
func (m *middleware) bound(w http.ResponseWriter, from io.ReadCloser, r route, memory *memory) io.ReadCloser {
	b := &body{ReadCloser: from, answer: w, control: http.NewResponseController(w), limit: cmp.Or(m.cfg.BodyDelay, bodyDelay)}
	b.left = b.limit
	b.wait(b.left)
	if r.streams {
		return b
	}
	b.ReadCloser = http.MaxBytesReader(w, from, m.cfg.MaxRequest)
	return struct {
		io.Reader
		io.Closer
	}{memory.reader(b), b}
}

// body is a request's, whose sender may not be slow. Whoever takes it may.
type body struct {
	io.ReadCloser
	answer      http.ResponseWriter
	control     *http.ResponseController
	limit, left time.Duration
}

func (b *body) Read(p []byte) (int, error) {
	b.wait(b.left)
	began := time.Now()
	n, err := b.ReadCloser.Read(p)
	b.left = min(b.left-time.Since(began)+time.Duration(n)*time.Second/bodyRate, b.limit)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.answer.Header().Set("Connection", "close") // what comes yet is no request
		err = fmt.Errorf("it came too slowly: more than %v behind %d bytes a second", b.limit, bodyRate)
	case err != nil:
		b.wait(0) // from now on the server looks whether the caller is still there
	}
	return n, err
}

// wait sets how long the connection may be read from; 0 is for as long as it takes.
func (b *body) wait(limit time.Duration) {
	var deadline time.Time
	if limit != 0 {
		deadline = time.Now().Add(limit)
	}
	_ = b.control.SetReadDeadline(deadline) // every connection has one
}
