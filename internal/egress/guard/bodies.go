package guard

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// clientBody is a request's body. It records whether the client sent something malformed, or has
// left.
type clientBody struct {
	io.ReadCloser
	session        *httpSession
	malformed, cut atomic.Bool
	asking         context.Context // ends when the client gives the request up
	over           atomic.Bool     // the request has been served; the transport may still read
}

func (b *clientBody) Read(p []byte) (int, error) {
	b.session.rest()
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.session.work(&b.over)
	}
	var network net.Error
	switch {
	case err == nil || errors.Is(err, io.EOF) || errors.Is(err, http.ErrBodyReadAfterClose):
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network) || b.asking.Err() != nil:
		b.cut.Store(true)
	default:
		b.malformed.Store(true)
	}
	return n, err
}

// clientWriter writes an answer. net/http may wait for the rest of the request's body before it
// writes.
type clientWriter struct {
	http.ResponseWriter
	*forwarding
}

// WriteHeader writes the head of an answer, or of one before it such as 103, without credentials.
func (w clientWriter) WriteHeader(status int) {
	if read := w.session.read.Load(); read != nil {
		read.redact(w.Header())
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w clientWriter) Write(p []byte) (int, error) {
	w.session.rest()
	return w.ResponseWriter.Write(p)
}

// FlushError and Unwrap are for http.ResponseController.
func (w clientWriter) FlushError() error {
	w.session.rest()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w clientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// originBody is an answer's body. It reports a server that does not send what it has announced.
type originBody struct {
	io.ReadCloser
	*forwarding
	answer *http.Response
}

func (b *originBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) { // the trailer is there now
		if read := b.session.read.Load(); read != nil {
			read.redact(b.answer.Trailer)
		}
	}
	if err != nil && !errors.Is(err, io.EOF) && !b.isClientFault() {
		b.fail(&refusal{verdict: decisions.Failed, reason: reasonBadAnswer})
	}
	return n, err
}

// isClientFault reports whether a request failed because of its client, and records a malformed
// body. A client that leaves in the middle is not recorded.
func (fw *forwarding) isClientFault() bool {
	if fw.body == nil {
		return false
	}
	malformed := fw.body.malformed.Load()
	if malformed {
		fw.fail(&refusal{verdict: decisions.Malformed, reason: reasonBadBody})
	}
	return malformed || fw.body.cut.Load()
}

// answerFailure answers a request whose origin could not be reached or did not answer, or which
// could not be sent on because its client did not complete it properly.
func answerFailure(w http.ResponseWriter, r *http.Request, err error) {
	fw := forwardingOf(r.Context())
	if fw.isClientFault() {
		refuse(w, fw.name, fw.session.who.Field(),
			refusal{verdict: decisions.Malformed, reason: reasonBadBody})
		return
	}
	why, is := errors.AsType[*refusal](err)
	if !is {
		why = &refusal{verdict: decisions.Failed, reason: reasonUpstream}
	}
	if r.Context().Err() == nil {
		if why.reason == reasonUpstream {
			fw.fail(why)
		} else {
			fw.decide(why)
		}
	}
	refuse(w, fw.name, fw.session.who.Field(), *why)
}
