// Package pace ends HTTP requests whose other end is slow: a body must arrive, and an answer must
// be taken, at a rate that any line has. How long a handler itself takes does not matter.
package pace

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

const (
	// Delay is how far the sender of a body may be behind Rate, which is in bytes a second.
	Delay = 10 * time.Second
	Rate  = 1 << 10
	// Patience is how long a piece of an answer, of maxPiece bytes at most, may wait to be taken.
	Patience = time.Minute
	maxPiece = 256 << 10
)

// Body returns a request's body that must arrive in time: its sender may be behind by limit, and
// each byte earns its part of a second. It is bounded even if nobody reads it: the server reads
// what is left of it before it goes on.
func Body(w http.ResponseWriter, from io.ReadCloser, limit time.Duration) *Sent {
	b := &Sent{ReadCloser: from, answer: w, control: http.NewResponseController(w), limit: limit,
		left: limit}
	b.wait(b.left)
	return b
}

// Sent is a body whose sender may not be slow. Its reader may.
type Sent struct {
	io.ReadCloser
	answer      http.ResponseWriter
	control     *http.ResponseController
	limit, left time.Duration
}

// Read implements io.Reader.
func (b *Sent) Read(p []byte) (int, error) {
	b.wait(b.left)
	began := time.Now()
	n, err := b.ReadCloser.Read(p)
	b.left = min(b.left-time.Since(began)+time.Duration(n)*time.Second/Rate, b.limit)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.answer.Header().Set("Connection", "close") // what still comes is no request
		err = fmt.Errorf("it came too slowly: more than %v behind %d bytes a second", b.limit, Rate)
	case errors.Is(err, io.EOF): // any other end leaves the deadline to what the server still reads
		_ = b.control.SetReadDeadline(time.Time{}) // from now on it watches whether the caller is still there
	}
	return n, err
}

// Linger returns the rest of the body, for which there is limit in all.
func (b *Sent) Linger(limit time.Duration) io.Reader {
	b.wait(limit)
	return b.ReadCloser // which sets no further deadline
}

// wait sets how long the connection may be read from. There is always a limit.
func (b *Sent) wait(limit time.Duration) {
	_ = b.control.SetReadDeadline(time.Now().Add(limit)) // every connection has deadlines
}

// Answer returns a ResponseWriter each piece of which must be taken within limit. After that,
// writes fail, and the connection ends with the handler. The server itself writes the last piece,
// so the bound stays when the handler has returned: see Free.
func Answer(w http.ResponseWriter, limit time.Duration) http.ResponseWriter {
	return &answer{ResponseWriter: w, control: http.NewResponseController(w), limit: limit}
}

// Free lets an answer wait for its reader, whatever bound an earlier answer on the connection has
// left.
func Free(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // a test's connection has no deadlines
}

type answer struct {
	http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration

	mu    sync.Mutex
	until time.Time // see SetWriteDeadline
}

func (a *answer) wait() {
	a.mu.Lock()
	defer a.mu.Unlock()
	_ = a.bound()
}

// bound sets how long the next piece may wait to be taken; mu is held.
func (a *answer) bound() error {
	deadline := time.Now().Add(a.limit)
	if !a.until.IsZero() && a.until.Before(deadline) {
		deadline = a.until
	}
	return a.control.SetWriteDeadline(deadline)
}

// SetWriteDeadline bounds the whole answer, besides its pieces; the zero time ends that. It is for
// http.ResponseController.
func (a *answer) SetWriteDeadline(t time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until = t
	return a.bound()
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) WriteHeader(status int) {
	a.wait()
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (written int, err error) {
	for {
		piece := p[:min(len(p), maxPiece)]
		a.wait()
		n, err := a.ResponseWriter.Write(piece)
		written += n
		if p = p[n:]; err != nil || len(p) == 0 {
			return written, err
		}
	}
}

// Flush implements http.Flusher, which streaming handlers look for.
func (a *answer) Flush() {
	a.wait()
	_ = a.control.Flush() // the next write reports an error
}

// ReadFrom implements io.ReaderFrom: the kernel copies files by itself, piece by piece.
func (a *answer) ReadFrom(from io.Reader) (copied int64, err error) {
	limited, is := from.(*io.LimitedReader)
	if !is {
		limited = &io.LimitedReader{R: from, N: 1<<63 - 1}
	}
	for limited.N > 0 {
		piece := &io.LimitedReader{R: limited.R, N: min(limited.N, maxPiece)}
		wanted := piece.N
		a.wait()
		n, err := io.Copy(a.ResponseWriter, piece)
		copied += n
		limited.N -= n
		if err != nil || n < wanted {
			return copied, err
		}
	}
	return copied, nil
}
