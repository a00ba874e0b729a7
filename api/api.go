// Package api is the HTTP surface: the routes, their access, and how errors become answers.
//
// api.go has the table of routes, classes.go the one map from error classes to statuses, decode.go
// how requests are read; exec.go the buffered and streamed exec, attach.go the one with stdin and
// signals over a WebSocket, encode.go how a command's bytes become JSON; files.go the calls on files,
// transfer.go those that stream one; processes.go the durable processes and processlog.go their logs;
// query.go how parameters are read, decisions.go what egress decided and follow.go how that is followed;
// lines.go the streams of those that are followed.
package api

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"path"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api/apitypes"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/egress/decisions"
	"github.com/daycare-run/sandbox/process"
	"github.com/daycare-run/sandbox/sandbox"
)

// Spec is the contract, as OpenAPI.
//
//go:embed openapi.yaml
var Spec []byte

// Service is what the routes call. *sandbox.Service is one.
type Service interface {
	Put(id string, r sandbox.Registration) (sandbox.Sandbox, bool, error)
	Get(id string) (sandbox.Sandbox, error)
	Delete(id string) error
	List() []sandbox.Sandbox
	Exec(context.Context, string, sandbox.Request, dockerexec.Output) (sandbox.Result, error)
	Explain(context.Context, string, sandbox.ExplainRequest) (sandbox.Explanation, error)
	Files
	ProcessCalls
	Containers() []dockerexec.Container
	Decisions() *decisions.Log
	Health(context.Context) sandbox.Health
}

// Files is the part of Service that reads and writes a sandbox's files.
type Files interface {
	Read(context.Context, string, sandbox.ReadRequest) (sandbox.ReadResult, error)
	Write(context.Context, string, sandbox.WriteRequest) (sandbox.Written, error)
	Upload(context.Context, string, sandbox.UploadRequest) (sandbox.Written, error)
	Download(ctx context.Context, id, path string) (sandbox.Download, error)
	ListDir(ctx context.Context, id, path string) (sandbox.Listing, error)
	Stat(ctx context.Context, id, path string) (sandbox.Entry, error)
	Mkdir(ctx context.Context, id, path string, parents bool) error
	Move(context.Context, string, sandbox.MoveRequest) error
	Remove(ctx context.Context, id, path string, recursive bool) error
}

// ProcessCalls is the part of Service that keeps durable processes. What is another user's is not found.
type ProcessCalls interface {
	StartProcess(context.Context, string, sandbox.ProcessRequest) (record process.Record, notices []string, err error)
	Processes(id string) ([]process.Record, error)
	Process(id, processID string) (process.Record, error)
	StopProcess(ctx context.Context, id, processID string, signal syscall.Signal) (process.Record, error)
	StopProcesses(ctx context.Context, id string) ([]process.Record, error)
	RemoveProcess(ctx context.Context, id, processID string) error
	ReadProcessLog(ctx context.Context, id, processID string, q sandbox.LogQuery) (sandbox.LogPart, error)
	// FollowProcessLog gives the end of a log and then what comes. A part is each's until that returns. It
	// blocks until the process has ended for good, and then returns nil; or until ctx ends, which is its cause;
	// or until each fails, which is its error.
	FollowProcessLog(ctx context.Context, id, processID string, q sandbox.LogQuery, each func(sandbox.LogPart) error) error
}

// Config is what the API needs; all fields but Stopping and Metrics must be set.
type Config struct {
	// Version is the service's, for health.
	Version string
	// MaxRequest bounds a request's body, in bytes. An upload is not bound by it.
	MaxRequest int64
	// MaxOutput is how many bytes of each stream a buffered exec keeps.
	MaxOutput int64
	// Stopping is closed when the service begins to stop: calls that have no end of their own end then.
	// Nil is for never.
	Stopping <-chan struct{}
	// Metrics answers GET /metrics, in the text format of Prometheus. Nil is for none.
	Metrics http.Handler
	Log     zerolog.Logger
}

// server answers requests.
type server struct {
	cfg     Config
	service Service
}

// route is one line of the API.
type route struct {
	pattern string
	handle  handler
	// streams says that the body goes to a file as it comes, so that it needs no bound.
	streams bool
}

type handler = func(*server, http.ResponseWriter, *http.Request) error

// The routes. Every one is for whoever may open the socket, which is its owner alone: access is
// decided by the socket's mode.
var routes = []route{
	{pattern: "GET /v1/health", handle: (*server).health},
	{pattern: "GET /v1/containers", handle: (*server).containers},
	{pattern: "GET /v1/egress/decisions", handle: (*server).decisions},
	{pattern: "GET /v1/sandboxes", handle: (*server).list},
	{pattern: "PUT /v1/sandboxes/{id}", handle: (*server).put},
	{pattern: "GET /v1/sandboxes/{id}", handle: (*server).get},
	{pattern: "DELETE /v1/sandboxes/{id}", handle: (*server).delete},
	{pattern: "POST /v1/sandboxes/{id}/exec", handle: (*server).exec},
	{pattern: "GET /v1/sandboxes/{id}/exec", handle: (*server).attach},
	{pattern: "POST /v1/sandboxes/{id}/explain", handle: call(explain)},
	{pattern: "POST /v1/sandboxes/{id}/read", handle: call(read)},
	{pattern: "POST /v1/sandboxes/{id}/write", handle: call(write)},
	{pattern: "POST /v1/sandboxes/{id}/list", handle: call(list)},
	{pattern: "POST /v1/sandboxes/{id}/stat", handle: call(stat)},
	{pattern: "POST /v1/sandboxes/{id}/mkdir", handle: call(mkdir)},
	{pattern: "POST /v1/sandboxes/{id}/move", handle: call(move)},
	{pattern: "POST /v1/sandboxes/{id}/remove", handle: call(remove)},
	{pattern: "POST /v1/sandboxes/{id}/processes", handle: (*server).startProcess},
	{pattern: "GET /v1/sandboxes/{id}/processes", handle: (*server).processes},
	{pattern: "POST /v1/sandboxes/{id}/processes/stop-all", handle: (*server).stopProcesses},
	{pattern: "GET /v1/sandboxes/{id}/processes/{processId}", handle: (*server).process},
	{pattern: "DELETE /v1/sandboxes/{id}/processes/{processId}", handle: (*server).removeProcess},
	{pattern: "POST /v1/sandboxes/{id}/processes/{processId}/stop", handle: (*server).stopProcess},
	{pattern: "GET /v1/sandboxes/{id}/processes/{processId}/log", handle: (*server).processLog},
	{pattern: "PUT /v1/sandboxes/{id}/files", handle: (*server).upload, streams: true},
	{pattern: "GET /v1/sandboxes/{id}/files", handle: (*server).download},
	{pattern: "HEAD /v1/sandboxes/{id}/files", handle: (*server).download},
}

// New makes the API's handler.
func New(service Service, cfg Config) http.Handler {
	s := &server{cfg: cfg, service: service}
	mux := http.NewServeMux()
	for _, r := range routes {
		mux.HandleFunc(r.pattern, func(w http.ResponseWriter, req *http.Request) {
			s.serve(w, req, r)
		})
	}
	if cfg.Metrics != nil {
		mux.Handle("GET /metrics", cfg.Metrics)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		s.fail(w, fmt.Errorf("there is no %s %s here: %w", req.Method, req.URL.Path, cerrdefs.ErrNotFound))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// The mux would redirect a path with such a component, and the caller would be told about a
		// path that it did not ask for.
		if clean := path.Clean(req.URL.Path); req.URL.Path != clean && req.URL.Path != clean+"/" {
			s.fail(w, fmt.Errorf("the path %q has an empty component, . or ..: %w", req.URL.Path, cerrdefs.ErrInvalidArgument))
			return
		}
		mux.ServeHTTP(w, req)
	})
}

// serve runs one route, with its body bounded, and logs it without anything that it carried.
func (s *server) serve(w http.ResponseWriter, req *http.Request, r route) {
	begun := time.Now()
	if !r.streams {
		req.Body = http.MaxBytesReader(w, req.Body, s.cfg.MaxRequest)
	}
	err := r.handle(s, w, req)
	if err != nil {
		s.fail(w, err)
	}
	s.cfg.Log.Debug().Str("route", r.pattern).Str("sandbox", req.PathValue("id")).
		Dur("took", time.Since(begun)).AnErr("error", err).Msg("call")
}

// fail answers also when the caller has hung up: one that has closed its sending side alone still reads,
// and what is not answered becomes a 200.
func (s *server) fail(w http.ResponseWriter, err error) {
	failure, status := classify(err)
	s.answer(w, status, apitypes.Failure{Error: failure})
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
	}
}
