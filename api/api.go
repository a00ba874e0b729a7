// Package api is the HTTP surface: the routes, their access, and how errors become answers.
//
// api.go has the table of routes, middleware.go what comes before and after each of them: who asks, limits, the line
// in the log; classes.go the one map from error classes to statuses, decode.go how requests are read; exec.go
// the buffered exec, stream.go the streamed one, signal.go its signals, attach.go the one over a WebSocket, input.go and terminal.go
// what comes in there, detached.go those that go on without their caller, encode.go how a command's bytes
// become JSON; files.go the calls on files, transfer.go those that stream one; processes.go the durable
// processes and processlog.go their logs; query.go how parameters are read, decisions.go what egress decided
// and follow.go how that is followed; events.go what happens, calls.go what calls came to; lines.go the streams of those that are followed. handle.go makes handlers of what answers with a value, routes.go has the
// plain routes, connections.go shares connections among callers, body.go bounds bodies in time and memory, wire.go gives
// what net/http answers by itself the contract's form, registration.go reads what a caller registers, contract.go
// answers with openapi.yaml, upgrade.go makes a request a WebSocket, and sendfile.go lets the kernel copy files.
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
	"github.com/daycare-run/sandbox/internal/attach"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// Spec is the contract, as OpenAPI.
//
//go:embed openapi.yaml
var Spec []byte

// Authenticator returns who a request is from, or why it is refused.
type Authenticator func(*http.Request) (access.Caller, error)

// Config is what the API needs. Version, MaxRequest, MaxOutput and Log must be set.
type Config struct {
	// Authenticator is asked about each request. Nil refuses all.
	Authenticator Authenticator
	// Hold returns a context that ends also when a caller's token is in force no more. Nil is for callers without tokens.
	Hold func(context.Context, access.Caller) (context.Context, context.CancelFunc)
	// Router says which host answers a call. Nil is for one host alone, which answers all.
	Router Router
	// Nodes are the hosts of the cluster; nil for one host alone.
	Nodes Nodes
	// Version is the service's, for health.
	Version string
	// MaxRequest bounds a request's body, in bytes. An upload is not bound by it.
	MaxRequest int64
	// MaxOutput is how many bytes of each stream a buffered exec keeps.
	MaxOutput int64
	// Stopping is closed when the service begins to stop: calls that have no end of their own end then.
	// Nil is for never.
	Stopping <-chan struct{}
	// BodyDelay is how long a body's sender may be behind a slow line. Zero is for ten seconds.
	BodyDelay time.Duration
	// Warnings are for health, beside the service's own.
	Warnings []string
	// Doctor looks at the host and at the settings. Nil is for none.
	Doctor func(context.Context) (types.DoctorReport, error)
	// Metrics answers GET /metrics, in the text format of Prometheus. Nil is for none.
	Metrics http.Handler
	Log     zerolog.Logger
	// LogCalls says whether each call is logged at level info rather than debug. Nil is for never.
	LogCalls func() bool
}

// Router says where a call is answered that is about a user, where there are several hosts.
type Router interface {
	// Route is asked once a caller is admitted. Where another host answers, it has when Route returns, and done is nil. Else
	// the call is this host's to answer until done is called, by ctx, which also ends when it may not go on. A call that only
	// looks is this host's, too, when no host holds the user: none becomes the holder by that.
	Route(w http.ResponseWriter, req *http.Request, caller access.Caller, user string, looks bool) (ctx context.Context, done func(), err error)
	// Await waits until all is known here that was known anywhere of a sandbox.
	Await(ctx context.Context, id string) error
	// Host is this host's name, and Gather what the others answer to a GET of the same caller's, by name. silent are those
	// that do not. Where another host has asked, there are none.
	Host() string
	Gather(ctx context.Context, caller access.Caller, pathAndQuery string) (answers map[string][]byte, silent []string)
}

// server answers one request. It is made for each: its service is the one that the caller may have.
type server struct {
	cfg     Config
	service *sandbox.Service
	// streamed are those of all requests.
	streamed  *streamedExecs
	following *following
	// caller is whose the request is.
	caller access.Caller
	// id is the request's.
	id string
	// cut says that the answer could not be written to its end.
	cut bool
	// requestMemory is what its body, or its messages, take.
	memory *requestMemory
	// upgraded says that the request has become a WebSocket.
	upgraded bool
}

// route is one line of the API.
type route struct {
	pattern string
	who     who
	handle  handler
	// streams says that the body goes to a file as it comes, so that it needs no bound.
	streams bool
	// follows says that the answer may have no end of its own: it ends with its caller's token.
	follows bool
}

type handler = func(*server, http.ResponseWriter, *http.Request) error

// who says whose calls a route takes. A route that does not say it takes none.
type who int

const (
	// forUsers is for every caller. One who acts for some users alone has a service in which there is nothing
	// of others.
	forUsers who = iota + 1
	// forOperators is for callers who act for everyone: it is about the service as a whole.
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
	{pattern: "GET /v1/egress/decisions", who: forUsers, handle: (*server).decisions, follows: true},
	{pattern: "GET /v1/events", who: forUsers, handle: (*server).events, follows: true},
	{pattern: "GET /v1/sandboxes", who: forUsers, handle: answers((*server).list)},
	{pattern: "PUT /v1/sandboxes/{id}", who: forUsers, handle: call((*server).put)},
	{pattern: "GET /v1/sandboxes/{id}", who: forUsers, handle: answers((*server).get)},
	{pattern: "DELETE /v1/sandboxes/{id}", who: forUsers, handle: answers((*server).delete)},
	{pattern: "POST /v1/sandboxes/{id}/pause", who: forUsers, handle: answers((*server).pause)},
	{pattern: "POST /v1/sandboxes/{id}/resume", who: forUsers, handle: answers((*server).resume)},
	{pattern: "POST /v1/sandboxes/{id}/exec", who: forUsers, handle: (*server).exec},
	{pattern: "GET /v1/sandboxes/{id}/exec", who: forUsers, handle: (*server).attach},
	{pattern: "GET /v1/sandboxes/{id}/execs", who: forUsers, handle: answers((*server).detachedExecs)},
	{pattern: "GET /v1/sandboxes/{id}/execs/{execId}", who: forUsers, handle: (*server).reattach},
	{pattern: "POST /v1/sandboxes/{id}/execs/{execId}/kill", who: forUsers, handle: callOptional((*server).killExec)},
	{pattern: "POST /v1/sandboxes/{id}/execs/{execId}/signal", who: forUsers, handle: call((*server).signalExec)},
	{pattern: "GET /v1/sandboxes/{id}/calls/{callId}/output", who: forUsers, handle: answers((*server).output)},
	{pattern: "POST /v1/sandboxes/{id}/explain", who: forUsers, handle: call((*server).explain)},
	{pattern: "POST /v1/sandboxes/{id}/read", who: forUsers, handle: call((*server).read)},
	{pattern: "POST /v1/sandboxes/{id}/write", who: forUsers, handle: call((*server).write)},
	{pattern: "POST /v1/sandboxes/{id}/list", who: forUsers, handle: call((*server).listDir)},
	{pattern: "POST /v1/sandboxes/{id}/stat", who: forUsers, handle: call((*server).stat)},
	{pattern: "POST /v1/sandboxes/{id}/mkdir", who: forUsers, handle: call((*server).mkdir)},
	{pattern: "POST /v1/sandboxes/{id}/move", who: forUsers, handle: call((*server).move)},
	{pattern: "POST /v1/sandboxes/{id}/remove", who: forUsers, handle: call((*server).remove)},
	{pattern: "POST /v1/sandboxes/{id}/processes", who: forUsers, handle: call((*server).startProcess)},
	{pattern: "GET /v1/sandboxes/{id}/processes", who: forUsers, handle: answers((*server).processes)},
	{pattern: "POST /v1/sandboxes/{id}/processes/stop-all", who: forUsers, handle: callOptional((*server).stopProcesses)},
	{pattern: "GET /v1/sandboxes/{id}/processes/{processId}", who: forUsers, handle: answers((*server).process)},
	{pattern: "DELETE /v1/sandboxes/{id}/processes/{processId}", who: forUsers, handle: answers((*server).removeProcess)},
	{pattern: "POST /v1/sandboxes/{id}/processes/{processId}/stop", who: forUsers, handle: callOptional((*server).stopProcess)},
	{pattern: "GET /v1/sandboxes/{id}/processes/{processId}/log", who: forUsers, handle: (*server).processLog, follows: true},
	{pattern: "PUT /v1/sandboxes/{id}/files", who: forUsers, handle: (*server).upload, streams: true},
	{pattern: "GET /v1/sandboxes/{id}/files", who: forUsers, handle: (*server).download},
	{pattern: "HEAD /v1/sandboxes/{id}/files", who: forUsers, handle: (*server).download},
}

// New makes the API's handler.
func New(service *sandbox.Service, cfg Config) http.Handler {
	m := &middleware{cfg: cfg, service: service, memory: memoryOf(cfg.MaxRequest), following: newFollowing(), streamed: streamedExecs{inputs: map[streamedExec]*attach.Input{}}}
	mux := http.NewServeMux()
	for _, r := range routes {
		mux.HandleFunc(r.pattern, func(w http.ResponseWriter, req *http.Request) { m.serve(w, req, r) })
	}
	elsewhere := route{pattern: "/", who: forUsers, handle: func(_ *server, w http.ResponseWriter, req *http.Request) error {
		return noSuchRoute(mux, w, req)
	}}
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) { m.serve(w, req, elsewhere) })
	unclean := route{pattern: "/", who: forUsers, handle: func(_ *server, _ http.ResponseWriter, req *http.Request) error {
		return fmt.Errorf("the path %.200q has an empty component, . or ..: %w", req.URL.Path, cerrdefs.ErrInvalidArgument)
	}}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// The mux would redirect a path with such a component, and the caller would be told about a
		// path that it did not ask for.
		if clean := path.Clean("/" + req.URL.Path); req.URL.Path != clean && req.URL.Path != clean+"/" {
			m.serve(w, req, unclean)
			return
		}
		mux.ServeHTTP(w, req)
	})
}

// reportedError is an error that was reported to the caller already, at the end of a stream.
type reportedError struct{ error }

func (e reportedError) Unwrap() error { return e.error }

// fail answers also when the caller has hung up: one that has closed its sending side alone still reads,
// and what is not answered becomes a 200.
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

// failure returns an error as it is sent to this request's caller, in an answer or at the end of a stream.
func (s *server) failure(err error) (types.Error, int) {
	failure, status := classify(err)
	failure.RequestID = s.id
	if host := s.host(); host != "" && (failure.Kind == types.Engine || failure.Kind == types.Unavailable) {
		failure.Message = fmt.Sprintf("host %q: %s", host, failure.Message)
	}
	return failure, status
}

func (s *server) answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// Written as it is encoded: an output may be six times as long then. A text or a path may have bytes
	// that JSON cannot: each becomes U+FFFD.
	err := json.MarshalWrite(w, body, jsontext.AllowInvalidUTF8(true))
	if err == nil {
		_, err = io.WriteString(w, "\n")
	}
	if err != nil {
		s.cfg.Log.Debug().Err(err).Msg("cannot answer")
		s.cut = true
	}
}
