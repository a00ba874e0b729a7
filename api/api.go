// Package api is the HTTP interface: the routes, who may call them, and how errors become answers.
//
// api.go has the table of routes, and routes.go the plain ones. middleware.go is what every request
// passes: the caller, limits, the log line. handle.go makes handlers from functions that return a
// value, decode.go and query.go read requests, and registration.go converts sandboxes. classes.go
// is the one map from error classes to statuses, and call.go the event of an answered request.
// exec.go has the buffered exec, stream.go and signal.go the streamed one, attach.go, input.go and
// terminal.go the one over a WebSocket, detached.go those that go on without their caller.
// encode.go and text.go turn bytes into JSON. files.go has the file calls, transfer.go uploads and
// downloads, archive.go those of directories, processes.go durable processes, processlog.go their
// logs, decisions.go and follow.go egress decisions, events.go events, calls.go the last hour's
// calls, nodes.go the hosts, and lines.go endless streams. connections.go shares connections,
// body.go bounds bodies in time and memory, wire.go puts net/http's own answers into the contract's
// form, users.go removes users, credentials.go registers credentials, contract.go serves
// openapi.yaml, upgrade.go opens WebSockets, and sendfile.go lets the kernel copy files.
package api

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"path"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/workload/attach"
)

// Spec is the OpenAPI contract.
//
//go:embed openapi.yaml
var Spec []byte

// Authenticator returns who sent a request, or why it is refused.
type Authenticator func(*http.Request) (access.Caller, error)

// Config is what the API needs. Credentials, Version, MaxRequest, MaxOutput and Log must be set.
type Config struct {
	// Authenticator is called for each request. Nil refuses all requests.
	Authenticator Authenticator
	// Tokens end a call when its caller's token is no longer in force for the same users. Nil is
	// for callers without tokens.
	Tokens *access.Tokens
	// Router says which host answers a call. Nil is for a single host, which answers all calls.
	Router Router
	// Nodes are the hosts of the cluster; nil for a single host.
	Nodes Nodes
	// Credentials are those that operators register.
	Credentials Credentials
	// Version is the service's version, as health reports it.
	Version string
	// MaxRequest bounds a request's body, in bytes. It does not bound uploads.
	MaxRequest int64
	// MaxOutput is how many bytes of each output stream a buffered exec keeps.
	MaxOutput int64
	// Stopping is closed when the service begins to stop: endless calls end then. Nil means never.
	Stopping <-chan struct{}
	// BodyDelay is how far a body's sender may fall behind a slow line. Zero means ten seconds.
	BodyDelay time.Duration
	// Warnings are added to the service's own warnings in health.
	Warnings []string
	// Doctor checks the host and the settings. Nil means that there is none.
	Doctor func(context.Context) (types.DoctorReport, error)
	// Metrics answers GET /metrics, in the Prometheus text format. Nil means that there is none.
	Metrics http.Handler
	Log     zerolog.Logger
	// LogCalls reports whether calls are logged at level info rather than debug. Nil means never.
	LogCalls func() bool
}

// Router says which of several hosts answers a call about a user.
type Router interface {
	// Route is called once a caller is admitted. If another host answers, it has done so when Route
	// returns, and done is nil. Otherwise this host answers until done is called, within ctx, which
	// also ends when it may no longer do so. A call that only looks is answered here too when no
	// host holds the user; it does not make this host the holder.
	Route(w http.ResponseWriter, req *http.Request, caller access.Caller, user string,
		looks bool) (ctx context.Context, done func(), err error)
	// Await waits until this host knows everything about a sandbox that any host knew.
	Await(ctx context.Context, id string) error
	// Host is this host's name. Gather returns the other hosts' answers to the same caller's GET,
	// by host; silent are the hosts that do not answer. It returns none if the request came from
	// another host.
	Host() string
	Gather(ctx context.Context, caller access.Caller,
		pathAndQuery string) (answers map[string][]byte, silent []string)
}

// server answers one request. Each request has its own, whose service is limited to what its caller
// may reach.
type server struct {
	cfg     Config
	service *sandbox.Service
	// streamed is shared by all requests.
	streamed  *streamedExecs
	following *following
	// caller is who sent the request.
	caller access.Caller
	// id is the request's id.
	id string
	// cut reports whether the answer was cut short while it was written.
	cut bool
	// memory is what the request's body or messages take.
	memory *requestMemory
	// upgraded reports whether the request has become a WebSocket.
	upgraded bool
}

// route is one route of the API.
type route struct {
	pattern string
	who     who
	handle  handler
	// streams reports whether the body goes to a file as it arrives, so its size needs no bound.
	streams bool
	// follows reports whether the answer may be endless: it ends when the caller's token does.
	follows bool
}

type handler = func(*server, http.ResponseWriter, *http.Request) error

// who says whose calls a route accepts. A route without it accepts none.
type who int

const (
	// forUsers is for every caller. A caller who acts for some users only gets a service that
	// contains nothing of other users.
	forUsers who = iota + 1
	// forOperators is for callers who act for everyone: the route is about the service as a whole.
	forOperators
)

// The routes.
var routes = []route{
	{pattern: "GET /v1/health", who: forUsers, handle: answers((*server).health)},
	{pattern: "GET /v1/openapi.json", who: forUsers, handle: (*server).contract},
	{pattern: "GET /metrics", who: forOperators, handle: (*server).metrics},
	{pattern: "GET /v1/containers", who: forUsers, handle: answers((*server).containers)},
	{pattern: "GET /v1/calls", who: forUsers, handle: answers((*server).calls)},
	{pattern: "GET /v1/doctor", who: forOperators, handle: answers((*server).doctor)},
	{pattern: "GET /v1/nodes", who: forOperators, handle: answers((*server).nodes)},
	{pattern: "PUT /v1/nodes/{node}", who: forOperators, handle: call((*server).setNode)},
	{pattern: "DELETE /v1/nodes/{node}", who: forOperators, handle: answers((*server).removeNode)},
	{pattern: "GET /v1/credentials", who: forOperators, handle: answers((*server).credentials)},
	{pattern: "PUT /v1/credentials/{name}", who: forOperators,
		handle: call((*server).putCredential)},
	{pattern: "GET /v1/credentials/{name}", who: forOperators,
		handle: answers((*server).credential)},
	{pattern: "DELETE /v1/credentials/{name}", who: forOperators,
		handle: answers((*server).removeCredential)},
	{pattern: "GET /v1/egress/decisions", who: forUsers, handle: (*server).decisions,
		follows: true},
	{pattern: "GET /v1/events", who: forUsers, handle: (*server).events, follows: true},
	{pattern: "GET /v1/processes", who: forUsers, handle: answers((*server).allProcesses)},
	{pattern: "DELETE /v1/users/{userId}", who: forUsers, handle: answers((*server).removeUser)},
	{pattern: "GET /v1/sandboxes", who: forUsers, handle: answers((*server).list)},
	{pattern: "PUT /v1/sandboxes/{id}", who: forUsers, handle: call((*server).put)},
	{pattern: "GET /v1/sandboxes/{id}", who: forUsers, handle: answers((*server).get)},
	{pattern: "DELETE /v1/sandboxes/{id}", who: forUsers, handle: answers((*server).delete)},
	{pattern: "POST /v1/sandboxes/{id}/pause", who: forUsers, handle: answers((*server).pause)},
	{pattern: "POST /v1/sandboxes/{id}/resume", who: forUsers, handle: answers((*server).resume)},
	{pattern: "POST /v1/sandboxes/{id}/exec", who: forUsers, handle: (*server).exec},
	{pattern: "GET /v1/sandboxes/{id}/exec", who: forUsers, handle: (*server).attach},
	{pattern: "GET /v1/sandboxes/{id}/execs", who: forUsers,
		handle: answers((*server).detachedExecs)},
	{pattern: "GET /v1/sandboxes/{id}/execs/{execId}", who: forUsers, handle: (*server).reattach},
	{pattern: "POST /v1/sandboxes/{id}/execs/{execId}/kill", who: forUsers,
		handle: callOptional((*server).killExec)},
	{pattern: "POST /v1/sandboxes/{id}/execs/{execId}/signal", who: forUsers,
		handle: call((*server).signalExec)},
	{pattern: "GET /v1/sandboxes/{id}/calls/{callId}/output", who: forUsers,
		handle: answers((*server).output)},
	{pattern: "POST /v1/sandboxes/{id}/explain", who: forUsers, handle: call((*server).explain)},
	{pattern: "POST /v1/sandboxes/{id}/read", who: forUsers, handle: (*server).read},
	{pattern: "POST /v1/sandboxes/{id}/write", who: forUsers, handle: call((*server).write)},
	{pattern: "POST /v1/sandboxes/{id}/list", who: forUsers, handle: call((*server).listDir)},
	{pattern: "POST /v1/sandboxes/{id}/stat", who: forUsers, handle: call((*server).stat)},
	{pattern: "POST /v1/sandboxes/{id}/mkdir", who: forUsers, handle: call((*server).mkdir)},
	{pattern: "POST /v1/sandboxes/{id}/move", who: forUsers, handle: call((*server).move)},
	{pattern: "POST /v1/sandboxes/{id}/remove", who: forUsers, handle: call((*server).remove)},
	{pattern: "POST /v1/sandboxes/{id}/processes", who: forUsers,
		handle: call((*server).startProcess)},
	{pattern: "GET /v1/sandboxes/{id}/processes", who: forUsers,
		handle: answers((*server).processes)},
	{pattern: "POST /v1/sandboxes/{id}/processes/stop-all", who: forUsers,
		handle: callOptional((*server).stopProcesses)},
	{pattern: "GET /v1/sandboxes/{id}/processes/{processId}", who: forUsers,
		handle: answers((*server).process)},
	{pattern: "DELETE /v1/sandboxes/{id}/processes/{processId}", who: forUsers,
		handle: answers((*server).removeProcess)},
	{pattern: "GET /v1/sandboxes/{id}/processes/{processId}/wait", who: forUsers,
		handle: answers((*server).waitProcess), follows: true},
	{pattern: "POST /v1/sandboxes/{id}/processes/{processId}/stop", who: forUsers,
		handle: callOptional((*server).stopProcess)},
	{pattern: "GET /v1/sandboxes/{id}/processes/{processId}/log", who: forUsers,
		handle: (*server).processLog, follows: true},
	{pattern: "PUT /v1/sandboxes/{id}/files", who: forUsers, handle: (*server).upload,
		streams: true},
	{pattern: "GET /v1/sandboxes/{id}/files", who: forUsers, handle: (*server).download},
	{pattern: "HEAD /v1/sandboxes/{id}/files", who: forUsers, handle: (*server).download},
	{pattern: "PUT /v1/sandboxes/{id}/archive", who: forUsers, handle: (*server).unpack,
		streams: true},
	{pattern: "GET /v1/sandboxes/{id}/archive", who: forUsers, handle: (*server).pack},
}

// New returns the API's handler.
func New(service *sandbox.Service, cfg Config) http.Handler {
	m := &middleware{cfg: cfg, service: service, memory: memoryOf(cfg.MaxRequest),
		following: newFollowing(),
		streamed:  streamedExecs{inputs: map[streamedExec]*attach.Input{}}}
	mux := http.NewServeMux()
	for _, r := range routes {
		mux.HandleFunc(r.pattern, func(w http.ResponseWriter, req *http.Request) {
			m.serve(w, req, r)
		})
	}
	elsewhere := route{pattern: "/", who: forUsers,
		handle: func(_ *server, w http.ResponseWriter, req *http.Request) error {
			return noSuchRoute(mux, w, req)
		}}
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		m.serve(w, req, elsewhere)
	})
	unclean := route{pattern: "/", who: forUsers,
		handle: func(_ *server, _ http.ResponseWriter, req *http.Request) error {
			return fmt.Errorf("the path %.200q has an empty component, . or ..: %w", req.URL.Path,
				cerrdefs.ErrInvalidArgument)
		}}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// The mux would redirect a path with such a component, and then the caller would get an
		// answer about a path that it did not ask for.
		if clean := path.Clean("/" + req.URL.Path); req.URL.Path != clean &&
			req.URL.Path != clean+"/" {
			m.serve(w, req, unclean)
			return
		}
		mux.ServeHTTP(w, req)
	})
}

// reportedError is an error that the caller was already told, as at the end of a stream.
type reportedError struct{ error }

func (e reportedError) Unwrap() error { return e.error }

// fail answers even when the caller has hung up: a caller that closed only its sending side still
// reads, and a request without an answer becomes a 200.
func (s *server) fail(w http.ResponseWriter, err error) {
	failure, status := s.failure(err)
	switch status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	case http.StatusTooManyRequests:
		w.Header().Set("Retry-After", quota.RetryAfter(err))
	}
	s.answer(w, status, types.Failure{Error: failure})
}

// failure converts an error for this request's caller, for an answer or for the end of a stream.
func (s *server) failure(err error) (types.Error, int) {
	failure, status := classify(err)
	failure.RequestID = s.id
	if host := s.host(); host != "" &&
		(failure.Kind == types.Engine || failure.Kind == types.Unavailable) {
		failure.Message = fmt.Sprintf("host %q: %s", host, failure.Message)
	}
	return failure, status
}

func (s *server) answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// Written while it is encoded, because encoded output may be six times as long. A text or a
	// path may have bytes that JSON cannot hold: each becomes U+FFFD.
	err := json.MarshalWrite(w, body, jsontext.AllowInvalidUTF8(true))
	if err == nil {
		_, err = io.WriteString(w, "\n")
	}
	if err != nil {
		s.cfg.Log.Debug().Err(err).Msg("cannot answer")
		s.cut = true
	}
}
