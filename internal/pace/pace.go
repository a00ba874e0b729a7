// Package pace ends HTTP requests whose other end is slow: a body has to come, and an answer to be taken, at a rate that any
// line has. How long a handler itself takes does not matter.
package pace

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

const (
	// Delay is how long who sends a body may be behind Rate, and Rate in bytes a second.
	Delay = 10 * time.Second
	Rate  = 1 << 10
	// Patience is how long a piece of an answer may wait to be taken, which has maxPiece bytes at most.
	Patience = time.Minute
	maxPiece = 256 << 10
)

// Body is a request's body that has to come in time: who sends it may be behind by limit; each byte earns its part of a
// second. It is bounded also when nobody reads it: the server takes what is left of it before it goes on.
func Body(w http.ResponseWriter, from io.ReadCloser, limit time.Duration) *Sent {
	b := &Sent{ReadCloser: from, answer: w, control: http.NewResponseController(w), limit: limit, left: limit}
	b.wait(b.left)
	return b
}

// Sent is a body whose sender may not be slow. Whoever takes it may.
type Sent struct {
	io.ReadCloser
	answer      http.ResponseWriter
	control     *http.ResponseController
	limit, left time.Duration
}

// Read is io.Reader.
func (b *Sent) Read(p []byte) (int, error) {
	b.wait(b.left)
	began := time.Now()
	n, err := b.ReadCloser.Read(p)
	b.left = min(b.left-time.Since(began)+time.Duration(n)*time.Second/Rate, b.limit)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.answer.Header().Set("Connection", "close") // what comes yet is no request
		err = fmt.Errorf("it came too slowly: more than %v behind %d bytes a second", b.limit, Rate)
	case err != nil:
		b.wait(0) // from now on the server looks whether the caller is still there
	}
	return n, err
}

// Linger returns what is left, for which there is so much time in all.
func (b *Sent) Linger(limit time.Duration) io.Reader {
	b.wait(limit)
	return b.ReadCloser // which sets no further deadline
}

// wait sets how long the connection may be read from; 0 is for as long as it takes.
func (b *Sent) wait(limit time.Duration) {
	var deadline time.Time
	if limit != 0 {
		deadline = time.Now().Add(limit)
	}
	_ = b.control.SetReadDeadline(deadline) // every connection has one
}

// Answer is an answer of which each piece has to be taken within limit. After that writes fail, and the connection ends with
// the handler. The last piece is that of the server's own, so the bound stays when the handler has returned: see Free.
func Answer(w http.ResponseWriter, limit time.Duration) http.ResponseWriter {
	return &answer{w, http.NewResponseController(w), limit}
}

// Free has an answer wait for who reads it, whatever bound an earlier one of the connection has left.
func Free(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // a test's answer has none
}

type answer struct {
	http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration
}

func (a *answer) wait() { _ = a.control.SetWriteDeadline(time.Now().Add(a.limit)) }

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

// Flush is http.Flusher, which those who stream look for.
func (a *answer) Flush() {
	a.wait()
	_ = a.control.Flush() // the next write tells
}

// ReadFrom is io.ReaderFrom: the kernel copies files by itself, piece by piece.
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
