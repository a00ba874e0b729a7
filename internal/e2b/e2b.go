// Package e2b is a second HTTP API, for clients that are written for E2B: npm's e2b and those like
// it run unmodified. It only translates: package persistent decides what a sandbox is and does, and
// the facade (package sandbox) does the same for files.
//
// e2b.go has the routes and what comes before each. caller.go finds out who calls, and by which
// token; signature.go reads signed URLs, and route.go finds the host that answers. errors.go turns
// errors into answers, as JSON and in the Connect protocol. control.go is the control plane:
// create.go creates a sandbox, network.go reads what it may reach, list.go lists sandboxes, info.go
// describes one, templates.go describes templates. process.go is process.Process and stream.go its
// streams; filesystem.go is filesystem.Filesystem and watch.go its watchers. files.go is /files.
// hostfiles.go operates on files on the host, insidefiles.go in the container by the shell scripts
// of script.go; form.go reads forms. ports.go leads to programs that listen in a sandbox,
// portconn.go is one connection. bodies.go counts the memory of requests, and share.go divides what
// there is among owners. processpb and filesystempb have the messages of both services.
package e2b

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"path"
	"time"

	"connectrpc.com/connect"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/fair"
	"github.com/daycare-run/sandbox/internal/pace"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// Config is what New needs. All fields but Domain and Cluster must be set.
type Config struct {
	Sandboxes *persistent.Sandboxes
	// Cluster is nil where there is one host.
	Cluster *Cluster
	// Service counts the calls of the control plane.
	Service *sandbox.Service
	// Callers have the tokens as their keys. Requests for a host name that is not the service's are
	// refused, and those of web pages.
	Callers access.TCP
	// Secret is what the sandboxes' own tokens are derived from: 32 bytes that outlive the service.
	Secret []byte
	// Blocked says that a sandbox has no network if its creator does not mention the network;
	// otherwise it has all of it.
	Blocked   bool
	Templates *Templates
	// MaxRequest bounds a request that is read whole, or one message of it, in bytes. It does not
	// bound uploads.
	MaxRequest int64
	// Domain is the domain of the host names of sandboxes' ports, with a port if clients are to
	// name one; empty is none.
	Domain string
	// TLS says that requests come over TLS. A request itself does not say so, because its
	// connection is counted on the way to it.
	TLS bool
	// Life ends when the service stops.
	Life context.Context
	Log  zerolog.Logger
	// BodyDelay is how far the sender of a body may be behind a slow line, and AnswerDelay how long
	// a piece of an answer may wait to be taken. Zero means those of package pace.
	BodyDelay, AnswerDelay time.Duration
	// Unasked is how long a watcher lives while nobody asks for its events. Zero means ten minutes.
	Unasked time.Duration
}

// baseTemplate is the name of our own image.
const baseTemplate = "base"

// envdVersion is the version that clients are told: it decides which of their features they use. Of
// those, metadata of files alone are not here; they are refused by name.
const envdVersion = "0.6.4"

type server struct {
	cfg      Config
	watchers *watchers
	bodies   share
	ports    *ports
	since    time.Time // when the service started

	// Anybody may name a sandbox, or send a signature, that is not known here: these bound how
	// often etcd is asked for such.
	unknownIDs, unknownSignatures fair.Rate
}

// How often etcd is asked for what strangers send, a second: for one sandbox's record, and for the
// names of all.
const (
	askedForID        = 50
	askedForSignature = 2
)

// mayAsk reports whether etcd may be asked once more, at a rate that bounds so many in a second.
func (s *server) mayAsk(of *fair.Rate, inASecond int) bool {
	return of.Take(int64(time.Since(s.since)), time.Second/time.Duration(inASecond), time.Second)
}

// New creates the Surface.
func New(cfg Config) Surface {
	s := newServer(cfg)
	answers := s.handler()
	if cfg.Cluster == nil {
		return Surface{Handler: answers}
	}
	return Surface{answers, s.sent(answers)}
}

func newServer(cfg Config) *server {
	cfg.BodyDelay, cfg.AnswerDelay = cmp.Or(cfg.BodyDelay, pace.Delay),
		cmp.Or(cfg.AnswerDelay, pace.Patience)
	s := &server{
		cfg: cfg, watchers: newWatchers(cmp.Or(cfg.Unasked, unasked)),
		bodies: bodiesOf(cfg.MaxRequest), since: time.Now(),
	}
	s.ports = newPorts(s)
	return s
}

func (s *server) handler() http.Handler {
	mux := s.routes()
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		at, below := s.hostBelow(req.Host)
		pace.Free(w)
		if at, is, err := s.toPort(req, at, below); is || err != nil {
			s.observed("ports", func(w http.ResponseWriter, req *http.Request) {
				if err != nil {
					fail(w, err)
					return
				}
				s.ports.serve(at, w, req)
			}, w, req)
			return
		}
		w = pace.Answer(w, s.cfg.AnswerDelay)
		if req.ContentLength != 0 {
			req = req.Clone(req.Context()) // the server depends on the type of its own body
			req.Body = pace.Body(w, req.Body, s.cfg.BodyDelay)
		}
		if clean := path.Clean("/" + req.URL.Path); req.URL.Path != clean &&
			req.URL.Path != clean+"/" {
			fail(w, invalid("the path %.200q has an empty component, . or ..", req.URL.Path)) // the mux would redirect
			return
		}
		if err := s.admit(req, at, below); err != nil {
			fail(w, err)
			return
		}
		_, pattern := mux.Handler(req)
		s.observed(pattern, mux.ServeHTTP, w, req)
	})
}

// toPort returns which port a request is for, and reports whether it is for a program in a sandbox.
func (s *server) toPort(req *http.Request, at portHost, below bool) (portHost, bool, error) {
	if at.id != "" {
		return at, at.port != ownPort, nil
	}
	named, err := headerPort(req.Header)
	if err == nil && named.port == ownPort {
		return at, false, nil
	}
	if refused := s.admit(req, at, below); refused != nil {
		return at, false, refused
	}
	if err == nil && s.cfg.Domain == "" { // which is how the operator keeps ports closed
		err = errs.Denied(
			"cannot reach port %d of sandbox %q: the operator of this service has set no e2b.domain",
			named.port, named.id)
	}
	return named, err == nil, err
}

// routes returns all routes, from the tables below. Each table says who may call.
func (s *server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for pattern, handle := range controlRoutes() {
		mux.Handle(pattern, s.controlled(handle))
	}
	for procedure, handler := range s.procedures() {
		mux.Handle("POST "+procedure, s.within(s.byToken, s.keeping(handler), failConnect))
	}
	for pattern, handle := range plainRoutes() {
		mux.Handle(pattern, s.within(s.byToken, answering(handle), failPlain))
	}
	for pattern, handle := range signedRoutes() {
		mux.Handle(pattern, s.within(s.byTokenOrSignature, answering(handle), failPlain))
	}
	mux.HandleFunc("GET /health", s.health)
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		// Not 404, which clients take for the thing that a call is about.
		fail(w, unimplemented{fmt.Sprintf("%s %.200s", req.Method, req.URL.Path)})
	})
	return mux
}

// controlRoutes returns the routes for callers with a key.
func controlRoutes() map[string]handlerOfControl {
	return map[string]handlerOfControl{
		"POST /sandboxes":                  controlCall.create,
		"POST /v2/sandboxes":               controlCall.create,
		"GET /sandboxes":                   controlCall.list,
		"GET /v2/sandboxes":                controlCall.list,
		"GET /sandboxes/{id}":              owned(controlCall.get),
		"DELETE /sandboxes/{id}":           owned(controlCall.kill),
		"POST /sandboxes/{id}/connect":     owned(controlCall.connect),
		"POST /v2/sandboxes/{id}/connect":  owned(controlCall.connect),
		"POST /sandboxes/{id}/timeout":     owned(controlCall.timeout),
		"PUT /sandboxes/{id}/network":      owned(controlCall.network),
		"POST /sandboxes/{id}/pause":       owned(controlCall.pause),
		"POST /sandboxes/{id}/resume":      owned(controlCall.connect),
		"GET /sandboxes/{id}/metrics":      owned(controlCall.metrics),
		"POST /sandboxes/{id}/snapshots":   laterOwned("snapshots"),
		"POST /sandboxes/{id}/fork":        laterOwned("forks"),
		"GET /snapshots":                   later("snapshots"),
		"GET /templates":                   controlCall.listTemplates,
		"GET /v2/templates":                controlCall.listTemplates,
		"GET /templates/aliases/{alias}":   controlCall.templateAlias,
		"GET /templates/{template}/{part}": controlCall.ofTemplate,
		"/templates":                       later(builds),
		"/templates/":                      later(builds),
		"/v2/templates":                    later(builds),
		"/v2/templates/":                   later(builds),
		"/v3/templates":                    later(builds),
		"/secrets":                         later("secrets"),
		"/secrets/":                        later("secrets"),
		"/volumes":                         later("volumes"),
		"/volumes/":                        later("volumes"),
		"/volumecontent/":                  later("volumes"),
	}
}

// procedures returns the calls into a sandbox in the Connect protocol, for callers with its token.
func (s *server) procedures() map[string]http.Handler {
	options := []connect.HandlerOption{connect.WithReadMaxBytes(int(s.cfg.MaxRequest)),
		connect.WithInterceptors(faultsOfCallers{}),
		connect.WithCompression("gzip", nil, nil)} // otherwise a message's memory could be counted only after it was taken
	return map[string]http.Handler{
		"/process.Process/List": connect.NewUnaryHandler(
			"/process.Process/List", unary(called.listProcesses), options...),
		"/process.Process/Start": connect.NewServerStreamHandler(
			"/process.Process/Start", stream(called.startProcess), options...),
		"/process.Process/Connect": connect.NewServerStreamHandler(
			"/process.Process/Connect", stream(called.connectProcess), options...),
		"/process.Process/Update": connect.NewUnaryHandler(
			"/process.Process/Update", unary(called.updateProcess), options...),
		"/process.Process/SendInput": connect.NewUnaryHandler(
			"/process.Process/SendInput", unary(called.sendInput), options...),
		"/process.Process/SendSignal": connect.NewUnaryHandler(
			"/process.Process/SendSignal", unary(called.sendSignal), options...),
		"/process.Process/CloseStdin": connect.NewUnaryHandler(
			"/process.Process/CloseStdin", unary(called.closeStdin), options...),
		"/filesystem.Filesystem/Stat": connect.NewUnaryHandler(
			"/filesystem.Filesystem/Stat", unary(called.stat), options...),
		"/filesystem.Filesystem/MakeDir": connect.NewUnaryHandler(
			"/filesystem.Filesystem/MakeDir", unary(called.makeDir), options...),
		"/filesystem.Filesystem/Move": connect.NewUnaryHandler(
			"/filesystem.Filesystem/Move", unary(called.move), options...),
		"/filesystem.Filesystem/ListDir": connect.NewUnaryHandler(
			"/filesystem.Filesystem/ListDir", unary(called.listDir), options...),
		"/filesystem.Filesystem/Remove": connect.NewUnaryHandler(
			"/filesystem.Filesystem/Remove", unary(called.remove), options...),
		"/filesystem.Filesystem/WatchDir": connect.NewServerStreamHandler(
			"/filesystem.Filesystem/WatchDir", stream(called.watchDir), options...),
		"/filesystem.Filesystem/CreateWatcher": connect.NewUnaryHandler(
			"/filesystem.Filesystem/CreateWatcher", unary(called.createWatcher), options...),
		"/filesystem.Filesystem/GetWatcherEvents": connect.NewUnaryHandler(
			"/filesystem.Filesystem/GetWatcherEvents", unary(called.watcherEvents), options...),
		"/filesystem.Filesystem/RemoveWatcher": connect.NewUnaryHandler(
			"/filesystem.Filesystem/RemoveWatcher", unary(called.removeWatcher), options...),
		"/process.Process/StreamInput":                 laterCall("StreamInput; use SendInput"),
		"/filesystem.Filesystem/" /* any other */ :     laterCall("this call"),
		"/process.Process/" /* any other, likewise */ : laterCall("this call"),
	}
}

// plainRoutes returns the other calls into a sandbox, for callers with its token.
func plainRoutes() map[string]handlerInside {
	return map[string]handlerInside{"GET /envs": called.envs, "GET /metrics": called.metricsInside}
}

// signedRoutes returns the calls that a signature opens, too.
func signedRoutes() map[string]handlerInside {
	return map[string]handlerInside{"GET /files": called.download, "POST /files": called.upload}
}

// unary and stream make a handler of the Connect protocol, and pass on the sandbox that the call is
// for.
func unary[In,
	Out any](do func(called, context.Context, *In) (*Out, error)) func(context.Context,
	*connect.Request[In]) (*connect.Response[Out], error) {
	return func(ctx context.Context, req *connect.Request[In]) (*connect.Response[Out], error) {
		out, err := do(calledOf(ctx), ctx, req.Msg)
		if err != nil {
			return nil, connectError(ctx, err)
		}
		return connect.NewResponse(out), nil
	}
}

func stream[In,
	Out any](do func(called, context.Context, *In, func(*Out) error) error) func(context.Context,
	*connect.Request[In], *connect.ServerStream[Out]) error {
	return func(ctx context.Context, req *connect.Request[In],
		to *connect.ServerStream[Out]) error {
		*ctx.Value(readKey{}).(*bool) = true
		return connectError(ctx, do(calledOf(ctx), ctx, req.Msg, to.Send))
	}
}
