package e2b

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/felixge/httpsnoop"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// controlCall is a call of the control plane, with its caller. Its methods are the control plane.
type controlCall struct {
	access.Caller
	server *server
}

type handlerOfControl func(controlCall, http.ResponseWriter, *http.Request) error

// controlled answers a call of the control plane for callers with a key.
func (s *server) controlled(handle handlerOfControl) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		caller, ok := s.caller(req)
		if !ok {
			fail(w, errs.Unauthenticated(
				"the key is missing or not known: send one of the service's tokens as X-API-KEY, which clients take from E2B_API_KEY"))
			return
		}
		done, err := s.cfg.Service.Scoped(ids.Everyone(), caller.Token).Ask("")
		if err != nil {
			fail(w, err)
			return
		}
		defer done()
		req.Body = http.MaxBytesReader(w, req.Body, s.cfg.MaxRequest)
		defer s.keeps(caller.Name, "the key "+caller.Name, req).release()
		if err := (controlCall{caller, s}).run(handle, w, req); err != nil {
			fail(w, err)
		}
	})
}

// keyPrefix is what E2B's own keys begin with, which some clients insist on.
const keyPrefix = "e2b_"

func (s *server) caller(req *http.Request) (access.Caller, bool) {
	if said, is := sentBy(req.Context()); is {
		return said.Caller, true
	}
	return s.keyed(req)
}

// keyed returns the caller whose key a request has.
func (s *server) keyed(req *http.Request) (access.Caller, bool) {
	keys := req.Header.Values("X-API-KEY")
	if len(keys) != 1 {
		return access.Caller{}, false
	}
	if caller, ok := s.cfg.Callers.Tokens.Find(keys[0]); ok {
		return caller, true
	}
	bare, prefixed := strings.CutPrefix(keys[0], keyPrefix)
	if !prefixed {
		return access.Caller{}, false
	}
	return s.cfg.Callers.Tokens.Find(bare)
}

// owner returns the owner of a sandbox; the zero Caller if the token is gone.
func (s *server) owner(i persistent.Info) access.Caller {
	owner, _ := s.cfg.Callers.Tokens.Named(i.Owner)
	return owner
}

// accessToken returns a sandbox's own token, and trafficToken the token for its ports. They are
// valid only as long as the owner's token from which they are derived: when that is gone, or
// another has its name, they open nothing. They can be checked even after the sandbox is gone.
func (s *server) accessToken(owner access.Caller, id string) string {
	return s.token(owner, "access:"+id)
}

func (s *server) trafficToken(owner access.Caller, id string) string {
	return s.token(owner, "traffic:"+id)
}

func (s *server) token(owner access.Caller, what string) string {
	code := hmac.New(sha256.New, s.cfg.Secret)
	code.Write([]byte(what + ":"))
	code.Write(owner.Key[:])
	return hex.EncodeToString(code.Sum(nil))
}

// sandboxHeader names the sandbox that a call is for.
const sandboxHeader = "E2b-Sandbox-Id"

// called is a call into a sandbox. Its methods are what there is inside.
type called struct {
	*persistent.Sandbox
	server *server
	// service is for the sandbox's files, and what it reaches, on behalf of its owner.
	service *sandbox.Service
	// user is the user that the client names: empty for the sandbox's own.
	user string
	// keepalive is how often the client wants to hear something on a stream.
	keepalive time.Duration
}

type calledKey struct{}

func calledOf(ctx context.Context) called { return ctx.Value(calledKey{}).(called) }

// credentials return the sandbox that a request is for, and the user that the client names,
// according to what the request proves.
type credentials func(*http.Request) (b *persistent.Sandbox, user string, err error)

// within answers calls into a sandbox from callers with the credentials that the route takes.
func (s *server) within(by credentials, handler http.Handler,
	fail func(http.ResponseWriter, *http.Request, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, user, err := by(req)
		if err != nil {
			fail(w, req, err)
			return
		}
		service := s.cfg.Service.Scoped(ids.Everyone(), b.Owner())
		asked, err := service.Ask(b.ID())
		if err != nil {
			fail(w, req, err)
			return
		}
		defer asked()
		ctx, release := s.cfg.Callers.Tokens.HoldKey(req.Context(), s.owner(b.Info()))
		defer release()
		req.Header.Set(sandboxHeader, b.ID())
		req, done, err := s.called(w, req.WithContext(ctx), b)
		if err != nil {
			fail(w, req, err)
			return
		}
		if done == nil {
			return
		}
		defer done()
		c := called{Sandbox: b, server: s, service: service, user: user,
			keepalive: keepalive(req.Header)}
		handler.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), calledKey{}, c)))
	})
}

// called lets the host that holds the sandbox answer a call into it. If that is this host, it wakes
// the sandbox.
func (s *server) called(w http.ResponseWriter, req *http.Request,
	b *persistent.Sandbox) (_ *http.Request, done func(), err error) {
	here, done, err := s.route(w, req, s.owner(b.Info()), b.ID(), false)
	if err != nil || done == nil {
		return req, nil, err
	}
	if _, err = s.cfg.Sandboxes.Any(b.ID()); cerrdefs.IsNotFound(err) { // it has ended meanwhile
		s.cfg.Sandboxes.Abandon(b.ID())
		err = errEnded(b.ID())
	}
	if err == nil {
		err = awake(here.Context(), b)
	}
	if err != nil {
		done()
		return req, nil, err
	}
	return here, done, nil
}

// errEnded and errLost are for a sandbox that is gone. Tests of clients hold on to E2B's words.
func errEnded(id string) error { return ended{id, "The sandbox was not found"} }
func errLost(id string) error {
	return ended{id, "The sandbox was not found: it has ended, as its container was lost"}
}

// byToken accepts a sandbox's own token.
func (s *server) byToken(req *http.Request) (*persistent.Sandbox, string, error) {
	b, err := s.find(req)
	user, _, _ := req.BasicAuth()
	if name := req.URL.Query().Get("username"); name != "" {
		user = name
	}
	return b, user, err
}

// find returns the sandbox that a call is for. Without its token it does not exist; with it, the
// caller is told if it is gone.
func (s *server) find(req *http.Request) (*persistent.Sandbox, error) {
	if said, is := sentBy(req.Context()); is {
		return s.sentTo(said)
	}
	id := req.Header.Get(sandboxHeader)
	if id == "" {
		return nil, notFound(
			"the call names no sandbox: it has no header E2b-Sandbox-Id; set E2B_SANDBOX_URL for the client")
	}
	given := []byte(req.Header.Get("X-Access-Token"))
	opens := func(owner access.Caller) bool {
		return hmac.Equal(given, []byte(s.accessToken(owner, id)))
	}
	b, err := s.cfg.Sandboxes.Any(id)
	if cerrdefs.IsNotFound(err) && s.cfg.Callers.Tokens.Any(opens) {
		if err = s.known(req.Context(), id, err); err == nil {
			b, err = s.cfg.Sandboxes.Any(id)
		}
	}
	switch {
	case err == nil:
		if owner, known := s.cfg.Callers.Tokens.Named(b.Info().Owner); known && opens(owner) {
			return b, nil
		}
	case cerrdefs.IsNotFound(err):
		if s.cfg.Callers.Tokens.Any(opens) {
			return nil, errEnded(id)
		}
	default:
		return nil, err
	}
	return nil, notFound("there is no sandbox %.64q for this access token", id)
}

// sentTo returns the sandbox that another host has sent a call for, if it belongs to the call's
// caller.
func (s *server) sentTo(said sent) (*persistent.Sandbox, error) {
	b, err := s.cfg.Sandboxes.Any(said.id)
	if err == nil && b.Info().Owner != said.Name || cerrdefs.IsNotFound(err) {
		return nil, errEnded(said.id)
	}
	return b, err
}

// awake resumes a paused sandbox, if a call may do that.
func awake(ctx context.Context, b *persistent.Sandbox) error {
	if b.Info().State == persistent.StateEnded {
		return errLost(b.ID())
	}
	err := b.Touch(ctx)
	if cerrdefs.IsFailedPrecondition(err) {
		return ended{b.ID(), "the sandbox is paused: connect to it, which resumes it"}
	}
	return err
}

// keepalive reads for how long a client may hear nothing.
func keepalive(header http.Header) time.Duration {
	const usual, least, limit = 90, 1, 3600
	seconds, err := strconv.Atoi(header.Get("Keepalive-Ping-Interval"))
	if err != nil {
		seconds = usual
	}
	return time.Duration(min(max(seconds, least), limit)) * time.Second
}

// health answers whether a sandbox runs. It resumes nothing.
func (s *server) health(w http.ResponseWriter, req *http.Request) {
	b, err := s.find(req)
	if err != nil {
		fail(w, err)
		return
	}
	_, done, err := s.route(w, req, s.owner(b.Info()), b.ID(), true)
	if err != nil {
		fail(w, err)
		return
	}
	if done == nil {
		return
	}
	defer done()
	switch b.Info().State {
	case persistent.StateRunning:
		w.WriteHeader(http.StatusNoContent)
	case persistent.StatePaused:
		fail(w, ended{b.ID(), "the sandbox is paused"})
	default:
		fail(w, errLost(b.ID()))
	}
}

// admit refuses what a browser was tricked into sending. A name below the service's domain is the
// service's own; the name of a sandbox's port identifies the sandbox, as the header of a call does.
func (s *server) admit(req *http.Request, at portHost, below bool) error {
	if _, sent := sentBy(req.Context()); sent {
		return nil
	}
	if !below {
		return s.cfg.Callers.Admit(req)
	}
	if at.id != "" && req.Header.Get(sandboxHeader) == "" {
		req.Header.Set(sandboxHeader, at.id)
	}
	known := *req
	known.Host = "localhost"
	return s.cfg.Callers.Admit(&known)
}

// Call is the event that a request was answered. It has nothing that the request carried, and no
// name that a caller made up.
type Call struct {
	Route  string
	Status int
	Bytes  int64
	Took   time.Duration
}

// Line implements events.Line.
func (c Call) Line(log *zerolog.Logger, _ string) {
	log.Debug().Str("route", c.Route).Int("status", c.Status).Int64("bytes", c.Bytes).
		Dur("took", c.Took).Msg("E2B call")
}

// observed answers a request and publishes a Call about it.
func (s *server) observed(pattern string, handle http.HandlerFunc, w http.ResponseWriter,
	req *http.Request) {
	took := httpsnoop.CaptureMetrics(handle, w, req)
	stream, _ := s.cfg.Service.Events()
	stream.Tell(req.Context(), "", Call{pattern, took.Code, took.Written, took.Duration})
}
