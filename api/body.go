package api

import (
	"cmp"
	"fmt"
	"io"
	"net/http"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/fair"
	"github.com/daycare-run/sandbox/internal/pace"
)

// memoryOf returns the bytes that the requests of all callers, and the answers that hold a file, a
// list or output, may take together: room for several of the largest of each.
func memoryOf(maxRequest int64) *fair.Pool {
	return fair.NewPool(int(max(512<<20, 16*maxRequest)), 0)
}

// requestMemory is one request's part of the memory that callers share. It holds the body or
// messages until the answer, and a file that was read until it is sent.
type requestMemory struct {
	of     *fair.Pool
	holder string // the caller
	bytes  int
}

// take adds n bytes. The error is of class ResourceExhausted.
func (m *requestMemory) take(n int) error {
	if !m.of.Take(m.holder, n) {
		return fmt.Errorf(
			"the requests of %s already use as much memory as allowed: try again when one has been answered: %w",
			m.holder, cerrdefs.ErrResourceExhausted)
	}
	m.bytes += n
	return nil
}

// handOver returns what the request has taken so far, for what outlives it. The request itself has
// nothing then.
func (m *requestMemory) handOver() *requestMemory {
	rest := *m
	m.bytes = 0
	return &rest
}

// release gives everything back.
func (m *requestMemory) release() {
	if m.bytes > 0 {
		m.of.Give(m.holder, m.bytes)
	}
	m.bytes = 0
}

// reader counts what is read, until release.
func (m *requestMemory) reader(from io.Reader) io.Reader { return memoryReader{from, m} }

type memoryReader struct {
	io.Reader
	memory *requestMemory
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

// bound returns a body that has to arrive in time and that is no larger than its route accepts.
func (m *middleware) bound(w http.ResponseWriter, from io.ReadCloser, r route,
	memory *requestMemory) io.ReadCloser {
	delay := cmp.Or(m.cfg.BodyDelay, pace.Delay)
	if r.streams {
		return pace.Body(w, from, delay)
	}
	b := pace.Body(w, http.MaxBytesReader(w, from, m.cfg.MaxRequest), delay)
	return struct {
		io.Reader
		io.Closer
	}{memory.reader(b), b}
}
