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
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/fair"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// middleware is what every request passes before and after its route's handler.
type middleware struct {
	cfg     Config
	service *sandbox.Service // unscoped: for callers who act for everyone
	memory  *fair.Pool
	// following bounds who follows events or decisions; each caller has a share.
	following following
	streamed  streamedExecs
}

// serve answers one request: it identifies the caller, limits the service to what that caller may
// reach, runs the route with its body bounded in size and time, and logs the call.
func (m *middleware) serve(w http.ResponseWriter, req *http.Request, r route) {
	s := &server{cfg: m.cfg, streamed: &m.streamed, following: &m.following, id: requestID(req),
		memory: &requestMemory{of: m.memory}}
	defer s.memory.release()
	w.Header().Set("X-Request-Id", s.id)
	log := m.cfg.Log.With().Str("requestId", s.id).Logger()
	req = req.WithContext(log.WithContext(req.Context())) // a copy: net/http depends on the type of its own body
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
		panic(http.ErrAbortHandler) // the caller must not take what was sent for the whole
	}
}

// answer runs the route as one of its user's and its caller's calls, on the host that holds the
// user. The call is counted for both here, before any other host is asked.
func (m *middleware) answer(s *server, w http.ResponseWriter, req *http.Request, r route,
	caller access.Caller) error {
	asked, err := s.service.Ask(req.PathValue("id"))
	if err != nil {
		return err
	}
	defer asked()
	if r.follows && m.cfg.Tokens != nil && caller.Key != (access.Caller{}).Key {
		ctx, release := m.cfg.Tokens.Hold(req.Context(), caller)
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
	ctx, done, err := m.cfg.Router.Route(w, req, caller, user,
		req.PathValue("id")+req.PathValue("userId") == "")
	if err != nil || done == nil {
		return err
	}
	defer done()
	return r.handle(s, w, req.WithContext(ctx))
}

// userOf returns the user whom a call is about, if its caller acts for that user; empty for none.
func (m *middleware) userOf(s *server, req *http.Request) (string, error) {
	id := req.PathValue("id")
	switch {
	case req.PathValue("userId") != "":
		return s.service.Named(req.PathValue("userId")), nil
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
		return "", nil // the handler reports the error
	}
	return box.User.String(), nil
}

// registrant returns the user of a registration. It reads the body for that and puts it back.
func (s *server) registrant(req *http.Request) (string, error) {
	text, err := readBody(req)
	if err != nil {
		return "", err
	}
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	var about struct{ UserID string }
	_ = json.Unmarshal(text, &about, json.MatchCaseInsensitiveNames(true), jsontext.AllowDuplicateNames(true)) // the handler reports faults
	return s.service.Named(about.UserID), nil
}

// admit identifies the caller, and gives s the service that this caller may use.
func (m *middleware) admit(s *server, w http.ResponseWriter, req *http.Request,
	r route) (access.Caller, error) {
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
		return caller,
			errs.Denied("%s is for callers who act for everyone, and %s acts for %s alone",
				r.pattern, caller.Name, caller.Users)
	}
	if !all {
		s.cfg.Warnings = nil // they are about the service as a whole
	}
	s.service, s.caller = m.service.Scoped(caller.Users, caller.Token), caller
	return caller, nil
}

// requestID returns the caller's own id for the request if it is valid, and otherwise a new one.
func requestID(req *http.Request) string {
	id := req.Header.Get("X-Request-Id")
	if id == "" || len(id) > 128 ||
		strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return rand.Text()
	}
	return id
}
