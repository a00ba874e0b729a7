package api

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/felixge/httpsnoop"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/budget"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// middleware is what every request passes before and after its route.
type middleware struct {
	cfg     Config
	service *sandbox.Service // as callers have it who act for everyone
	memory  *budget.Pool
	// following are the places of those who follow events, or decisions, of which each caller has a share.
	following following
	streamed  streamedExecs
}

// serve answers one request: it finds out who asks and what of the service that caller may have, runs the
// route with its body bounded in size and time, and logs it.
func (m *middleware) serve(w http.ResponseWriter, req *http.Request, r route) {
	s := &server{cfg: m.cfg, streamed: &m.streamed, following: &m.following, id: requestID(req), memory: &requestMemory{of: m.memory}}
	defer s.memory.release()
	w.Header().Set("X-Request-Id", s.id)
	log := m.cfg.Log.With().Str("requestId", s.id).Logger()
	req = req.WithContext(log.WithContext(req.Context())) // a copy: the server goes by the kind of its own body
	if req.ContentLength != 0 {
		req.Body = m.bound(w, req.Body, r, s.memory)
	}
	var caller access.Caller
	var err error
	answer := httpsnoop.Metrics{Code: http.StatusOK}
	answer.CaptureMetrics(w, func(w http.ResponseWriter) {
		if caller, err = m.admit(s, w, req, r); err == nil {
			err = m.answer(s, w, req, r, caller)
		}
		if _, is := errors.AsType[reportedError](err); err != nil && !is {
			s.fail(w, err)
		}
	})
	if s.upgraded {
		answer.Code = http.StatusSwitchingProtocols // httpsnoop counts no 1xx
	}
	m.tell(req, r, caller, answer, err)
	if s.cut {
		panic(http.ErrAbortHandler) // what was sent is not to look like the whole
	}
}

// answer runs the route as one of its user's and its caller's calls, on the host that holds the user. Both are counted here
// before the other hosts are asked anything.
func (m *middleware) answer(s *server, w http.ResponseWriter, req *http.Request, r route, caller access.Caller) error {
	asked, err := s.service.Ask(req.PathValue("id"))
	if err != nil {
		return err
	}
	defer asked()
	if r.follows && m.cfg.Hold != nil && caller.Key != (access.Caller{}).Key {
		ctx, release := m.cfg.Hold(req.Context(), caller)
		defer release()
		req = req.WithContext(ctx)
	}
	if m.cfg.Router == nil {
		return r.handle(s, w, req)
	}
	user, err := m.userOf(s, req)
	if err != nil {
		return err
	}
	if user == "" {
		return r.handle(s, w, req)
	}
	ctx, done, err := m.cfg.Router.Route(w, req, caller, user, req.PathValue("id") == "")
	if err != nil || done == nil {
		return err
	}
	defer done()
	return r.handle(s, w, req.WithContext(ctx))
}

// userOf is whom a call is about, of those for whom its caller acts; empty for nobody.
func (m *middleware) userOf(s *server, req *http.Request) (string, error) {
	id := req.PathValue("id")
	switch {
	case id == "":
		return s.service.Named(req.URL.Query().Get("userId")), nil
	case req.Method == http.MethodPut && strings.HasSuffix(req.Pattern, "/{id}"):
		return s.registrant(req)
	}
	box, err := s.service.Get(id)
	if cerrdefs.IsNotFound(err) {
		if err := m.cfg.Router.Await(req.Context(), id); err != nil {
			return "", err
		}
		box, err = s.service.Get(id)
	}
	if err != nil {
		return "", nil // as the handler says
	}
	return box.User.String(), nil
}

// registrant is whom a registration is for, whose body is read for that and put back.
func (s *server) registrant(req *http.Request) (string, error) {
	text, err := readBody(req)
	if err != nil {
		return "", err
	}
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	var about struct{ UserID string }
	_ = json.Unmarshal(text, &about, json.MatchCaseInsensitiveNames(true), jsontext.AllowDuplicateNames(true)) // the handler says what is wrong
	return s.service.Named(about.UserID), nil
}

// admit says who asks, and gives the server the service that is theirs.
func (m *middleware) admit(s *server, w http.ResponseWriter, req *http.Request, r route) (access.Caller, error) {
	if m.cfg.Authenticator == nil {
		return access.Caller{}, errs.Denied("the service knows no callers here")
	}
	caller, err := m.cfg.Authenticator(req)
	if err != nil {
		return access.Caller{}, err
	}
	if err := identified(req.Context(), w, caller.Name); err != nil {
		return caller, err
	}
	s.memory.holder = caller.Name
	all := caller.Users.All()
	if r.who != forUsers && (r.who != forOperators || !all) {
		return caller, errs.Denied("%s is for callers who act for everyone, and %s acts for %s alone", r.pattern, caller.Name, caller.Users)
	}
	if !all {
		s.cfg.Warnings = nil // they are about the service as a whole
	}
	s.service, s.caller = m.service.Scoped(caller.Users, caller.Token), caller
	return caller, nil
}

// requestID is the caller's own name for the request, if it is one, or a new one.
func requestID(req *http.Request) string {
	id := req.Header.Get("X-Request-Id")
	if id == "" || len(id) > 128 || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return rand.Text()
	}
	return id
}
