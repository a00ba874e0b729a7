package api

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/felixge/httpsnoop"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// middleware is what every request passes before and after its route.
type middleware struct {
	cfg     Config
	service Service // as callers have it who act for everyone
}

// bodyTimeout is BodyTimeout unless it is set.
const bodyTimeout = time.Minute

// serve answers one request: it finds out who asks and what of the service that caller may have, runs the
// route with its body bounded in size and time, and logs it.
func (m *middleware) serve(w http.ResponseWriter, req *http.Request, r route) {
	s := &server{cfg: m.cfg, id: requestID(req)}
	w.Header().Set("X-Request-Id", s.id)
	log := m.cfg.Log.With().Str("requestId", s.id).Logger()
	req = req.WithContext(log.WithContext(req.Context())) // a copy: the server goes by the kind of its own body
	if req.ContentLength != 0 {
		req.Body = m.bound(w, req.Body, r)
	}
	var caller access.Caller
	var err error
	answer := httpsnoop.Metrics{Code: http.StatusOK}
	answer.CaptureMetrics(w, func(w http.ResponseWriter) {
		if caller, err = m.admit(s, req, r); err == nil {
			err = r.handle(s, w, req)
		}
		if _, is := errors.AsType[reportedError](err); err != nil && !is {
			s.fail(w, err)
		}
	})
	if s.upgraded {
		answer.Code = http.StatusSwitchingProtocols // httpsnoop counts no 1xx
	}
	if m.cfg.Observed != nil {
		m.cfg.Observed(observed(r.pattern, err, answer.Duration))
	}
	m.log(log, req, r, caller, answer, err)
	if s.cut {
		panic(http.ErrAbortHandler) // what was sent is not to look like the whole
	}
}

// admit says who asks, and gives the server the service that is theirs.
func (m *middleware) admit(s *server, req *http.Request, r route) (access.Caller, error) {
	if m.cfg.Authenticator == nil {
		return access.Caller{}, errs.Denied("the service knows no callers here")
	}
	caller, err := m.cfg.Authenticator(req)
	if err != nil {
		return access.Caller{}, err
	}
	all := caller.Users.All()
	switch mayCall := r.who == forUsers || r.who == forOperators && all; {
	case mayCall && all && (caller.Token == (quota.Token{}) || m.cfg.Scoped == nil):
		s.service = m.service
	case mayCall && m.cfg.Scoped != nil:
		s.service = m.cfg.Scoped(caller.Users, caller.Token)
	default:
		return caller, errs.Denied("%s is for callers who act for everyone, and %s acts for %s alone", r.pattern, caller.Name, caller.Users)
	}
	if !all {
		s.cfg.Warnings = nil // they are about the service as a whole
	}
	return caller, s.service.Ask(req.PathValue("id"))
}

// bound is a body that has to come in time. It is bounded also when nobody reads it: the server takes what
// is left of it before it goes on.
func (m *middleware) bound(w http.ResponseWriter, from io.ReadCloser, r route) io.ReadCloser {
	b := &body{ReadCloser: from, answer: w, control: http.NewResponseController(w), limit: cmp.Or(m.cfg.BodyTimeout, bodyTimeout), streams: r.streams}
	if !r.streams {
		b.ReadCloser = http.MaxBytesReader(w, from, m.cfg.MaxRequest)
	}
	b.wait(b.limit)
	return b
}

// body is a request's: all of it has to come within the limit, or of one that streams, each part.
type body struct {
	io.ReadCloser
	answer  http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration
	streams bool
}

func (b *body) Read(p []byte) (int, error) {
	if b.streams {
		b.wait(b.limit)
	}
	n, err := b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.answer.Header().Set("Connection", "close") // what comes yet is no request
		err = fmt.Errorf("it did not come within %v", b.limit)
	case err != nil:
		b.wait(0) // from now on the server looks whether the caller is still there
	}
	return n, err
}

// wait sets how long the connection may be read from; 0 is for as long as it takes.
func (b *body) wait(limit time.Duration) {
	var deadline time.Time
	if limit > 0 {
		deadline = time.Now().Add(limit)
	}
	_ = b.control.SetReadDeadline(deadline) // every connection has one
}

// requestID is the caller's own name for the request, if it is one, or a new one.
func requestID(req *http.Request) string {
	id := req.Header.Get("X-Request-Id")
	if id == "" || len(id) > 128 || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return rand.Text()
	}
	return id
}

// log tells of a call without anything that it carried: no query, no header, no body, and of an error its
// text only where that is the service's own fault.
func (m *middleware) log(log zerolog.Logger, req *http.Request, r route, caller access.Caller, answer httpsnoop.Metrics, err error) {
	event := log.Debug()
	if m.cfg.LogCalls != nil && m.cfg.LogCalls() {
		event = log.Info()
	}
	event = event.Str("method", known(req.Method)).Str("route", r.pattern).Int("status", answer.Code).Int64("bytes", answer.Written).Dur("took", answer.Duration)
	if caller.Name != "" {
		event = event.Str("caller", caller.Name)
	}
	if id, notOne := sandbox.ParseID(req.PathValue("id")); notOne == nil {
		event = event.Stringer("sandbox", id)
	}
	status := answer.Code
	if err != nil {
		var failure types.Error
		failure, status = classify(err) // also at the end of a stream, which has begun well
		event = event.Str("kind", string(failure.Kind))
	}
	event.Msg("call")
	if status >= http.StatusInternalServerError && !cerrdefs.IsUnavailable(err) && !isGone(err) {
		log.Warn().Str("route", r.pattern).Err(err).Msg("a call has failed")
	}
}

// known is a method, unless somebody has made it up.
func known(method string) string {
	for _, m := range methods {
		if m == method {
			return m
		}
	}
	return "other"
}
