// Package e2b is a second HTTP surface, for clients that are written against E2B: npm's e2b and those like it run
// unmodified. It translates and decides nothing: what a sandbox is and does is lasting's, and files are the facade's.
//
// e2b.go has the routes and what comes before each; caller.go who calls, and by which token, signature.go signed URLs, and
// route.go on which host; errors.go how errors become answers, as JSON and in the Connect protocol. control.go is the control
// plane: create.go makes a sandbox, network.go reads what one may reach, list.go lists them, info.go describes one. process.go
// is process.Process and stream.go its streams; filesystem.go is filesystem.Filesystem, watch.go its watchers, ports.go the way
// to programs that listen in a sandbox, files.go is /files: hostfiles.go does what they ask for on the host, insidefiles.go in
// the container, form.go reads forms; portconn.go is one connection to a port. bodies.go counts what requests have in memory,
// and share.go shares what there is among owners. The messages of both services are in processpb and filesystempb.
package e2b

import (
	"cmp"
	"context"
	"net/http"
	"path"
	"time"

	"connectrpc.com/connect"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/lasting"
	"github.com/daycare-run/sandbox/internal/pace"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// Config is what the surface needs. All fields but Domain and Cluster must be set.
type Config struct {
	Sandboxes *lasting.Sandboxes
	// Cluster is nil where there is one host.
	Cluster *Cluster
	// Service counts the calls of the control plane.
	Service *sandbox.Service
	// Admit refuses requests to a name that is not the service's, and those of web pages.
	Admit func(*http.Request) error
	// Tokens are the callers' keys.
	Tokens *access.Tokens
	// Secret is what the sandboxes' own tokens are made with: 32 bytes that outlive the service.
	Secret []byte
	// Blocked says that a sandbox whose creator says nothing about the network has none; else it has all of it.
	Blocked bool
	// Templates are what sandboxes can be made of now, by name, beside "base".
	Templates func() map[string]lasting.Template
	// MaxRequest bounds what comes at once, in bytes. An upload is not bound by it.
	MaxRequest int64
	// Domain is below what sandboxes' ports have their hosts, with a port if clients are to name one; empty is none.
	Domain string
	// TLS says that what comes has come over it. A request does not say so, as connections are counted on the way to it.
	TLS bool
	// Life ends when the service stops.
	Life context.Context
	Log  zerolog.Logger
	// BodyDelay and AnswerDelay are how long who sends a body may be behind a slow line, and how long a piece of an answer may
	// wait to be taken. Zero is for those of package pace.
	BodyDelay, AnswerDelay time.Duration
	// Unasked is after how long a watcher ends for whose events nobody asks. Zero is for ten minutes.
	Unasked time.Duration
}

// baseTemplate is the name of our own image.
const baseTemplate = "base"

// envdVersion is what clients are told: it decides which of their features they use. From 0.6.2 on they keep metadata with
// files, which is not here.
const envdVersion = "0.6.1"

type server struct {
	cfg      Config
	watchers *watchers
	bodies   share
	ports    *ports
}

// New makes the surface.
func New(cfg Config) Surface {
	cfg.BodyDelay, cfg.AnswerDelay = cmp.Or(cfg.BodyDelay, pace.Delay), cmp.Or(cfg.AnswerDelay, pace.Patience)
	s := &server{cfg: cfg, watchers: newWatchers(cmp.Or(cfg.Unasked, unasked)), bodies: bodiesOf(cfg.MaxRequest)}
	s.ports = newPorts(s)
	answers := s.handler()
	if cfg.Cluster == nil {
		return Surface{Handler: answers}
	}
	return Surface{answers, s.sent(answers)}
}

func (s *server) handler() http.Handler {
	mux := s.routes()
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		at, below := s.hostBelow(req.Host)
		pace.Free(w)
		if below && at.id != "" && at.port != ownPort {
			s.observed("ports", func(w http.ResponseWriter, req *http.Request) { s.ports.serve(at, w, req) }, w, req)
			return
		}
		w = pace.Answer(w, s.cfg.AnswerDelay)
		if req.ContentLength != 0 {
			req = req.Clone(req.Context()) // the server goes by the kind of its own body
			req.Body = pace.Body(w, req.Body, s.cfg.BodyDelay)
		}
		if clean := path.Clean("/" + req.URL.Path); req.URL.Path != clean && req.URL.Path != clean+"/" {
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

// routes are all that there are: each of one of the tables below, which say who may call.
func (s *server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for pattern, handle := range s.controlRoutes() {
		mux.Handle(pattern, s.controlled(handle))
	}
	for procedure, handler := range s.procedures() {
		mux.Handle("POST "+procedure, s.within(s.byToken, s.keeping(handler), failConnect))
	}
	for pattern, handle := range s.plainRoutes() {
		mux.Handle(pattern, s.within(s.byToken, answering(handle), failPlain))
	}
	for pattern, handle := range s.signedRoutes() {
		mux.Handle(pattern, s.within(s.byTokenOrSignature, answering(handle), failPlain))
	}
	mux.HandleFunc("GET /health", s.health)
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		fail(w, notFound("there is no %s %.200s here", req.Method, req.URL.Path))
	})
	return mux
}

// controlRoutes are for callers with a key.
func (s *server) controlRoutes() map[string]handlerOfControl {
	return map[string]handlerOfControl{
		"POST /sandboxes":                 s.create,
		"POST /v2/sandboxes":              s.create,
		"GET /sandboxes":                  s.list,
		"GET /v2/sandboxes":               s.list,
		"GET /sandboxes/{id}":             s.owned(s.get),
		"DELETE /sandboxes/{id}":          s.owned(s.kill),
		"POST /sandboxes/{id}/connect":    s.owned(s.connect),
		"POST /v2/sandboxes/{id}/connect": s.owned(s.connect),
		"POST /sandboxes/{id}/timeout":    s.owned(s.timeout),
		"PUT /sandboxes/{id}/network":     s.owned(s.network),
		"POST /sandboxes/{id}/pause":      s.owned(s.pause),
		"POST /sandboxes/{id}/resume":     s.owned(s.connect),
		"GET /sandboxes/{id}/metrics":     s.owned(s.metrics),
		"POST /sandboxes/{id}/snapshots":  s.laterOwned("snapshots"),
		"POST /sandboxes/{id}/fork":       s.laterOwned("forks"),
		"GET /snapshots":                  later("snapshots"),
		"GET /volumes":                    later("volumes"),
		"POST /volumes":                   later("volumes"),
		"/templates":                      later("templates that are built by calls; the operator names images in e2b.templates"),
		"/templates/":                     later("templates that are built by calls; the operator names images in e2b.templates"),
		"/v2/templates":                   later("templates that are built by calls; the operator names images in e2b.templates"),
		"/v3/templates":                   later("templates that are built by calls; the operator names images in e2b.templates"),
	}
}

// procedures are the calls into a sandbox in the Connect protocol, for those with its token.
func (s *server) procedures() map[string]http.Handler {
	options := []connect.HandlerOption{connect.WithReadMaxBytes(int(s.cfg.MaxRequest)), connect.WithInterceptors(faultsOfCallers{}),
		connect.WithCompression("gzip", nil, nil)} // or what a message takes could not be counted before it is there
	return map[string]http.Handler{
		"/process.Process/List":                        connect.NewUnaryHandler("/process.Process/List", unary(s.listProcesses), options...),
		"/process.Process/Start":                       connect.NewServerStreamHandler("/process.Process/Start", stream(s.startProcess), options...),
		"/process.Process/Connect":                     connect.NewServerStreamHandler("/process.Process/Connect", stream(s.connectProcess), options...),
		"/process.Process/Update":                      connect.NewUnaryHandler("/process.Process/Update", unary(s.updateProcess), options...),
		"/process.Process/SendInput":                   connect.NewUnaryHandler("/process.Process/SendInput", unary(s.sendInput), options...),
		"/process.Process/SendSignal":                  connect.NewUnaryHandler("/process.Process/SendSignal", unary(s.sendSignal), options...),
		"/process.Process/CloseStdin":                  connect.NewUnaryHandler("/process.Process/CloseStdin", unary(s.closeStdin), options...),
		"/filesystem.Filesystem/Stat":                  connect.NewUnaryHandler("/filesystem.Filesystem/Stat", unary(s.stat), options...),
		"/filesystem.Filesystem/MakeDir":               connect.NewUnaryHandler("/filesystem.Filesystem/MakeDir", unary(s.makeDir), options...),
		"/filesystem.Filesystem/Move":                  connect.NewUnaryHandler("/filesystem.Filesystem/Move", unary(s.move), options...),
		"/filesystem.Filesystem/ListDir":               connect.NewUnaryHandler("/filesystem.Filesystem/ListDir", unary(s.listDir), options...),
		"/filesystem.Filesystem/Remove":                connect.NewUnaryHandler("/filesystem.Filesystem/Remove", unary(s.remove), options...),
		"/filesystem.Filesystem/WatchDir":              connect.NewServerStreamHandler("/filesystem.Filesystem/WatchDir", stream(s.watchDir), options...),
		"/filesystem.Filesystem/CreateWatcher":         connect.NewUnaryHandler("/filesystem.Filesystem/CreateWatcher", unary(s.createWatcher), options...),
		"/filesystem.Filesystem/GetWatcherEvents":      connect.NewUnaryHandler("/filesystem.Filesystem/GetWatcherEvents", unary(s.watcherEvents), options...),
		"/filesystem.Filesystem/RemoveWatcher":         connect.NewUnaryHandler("/filesystem.Filesystem/RemoveWatcher", unary(s.removeWatcher), options...),
		"/process.Process/StreamInput":                 s.laterCall("StreamInput; use SendInput"),
		"/filesystem.Filesystem/" /* any other */ :     s.laterCall("this call"),
		"/process.Process/" /* any other, likewise */ : s.laterCall("this call"),
	}
}

// plainRoutes are the other calls into a sandbox, for those with its token.
func (s *server) plainRoutes() map[string]handlerInside {
	return map[string]handlerInside{"GET /envs": s.envs, "GET /metrics": s.metricsInside}
}

// signedRoutes are those that a signature opens, too.
func (s *server) signedRoutes() map[string]handlerInside {
	return map[string]handlerInside{"GET /files": s.download, "POST /files": s.upload}
}

// unary and stream give a handler of the Connect protocol the sandbox that the call is to.
func unary[In, Out any](do func(context.Context, called, *In) (*Out, error)) func(context.Context, *connect.Request[In]) (*connect.Response[Out], error) {
	return func(ctx context.Context, req *connect.Request[In]) (*connect.Response[Out], error) {
		out, err := do(ctx, calledOf(ctx), req.Msg)
		if err != nil {
			return nil, connectError(ctx, err)
		}
		return connect.NewResponse(out), nil
	}
}

func stream[In, Out any](do func(context.Context, called, *In, func(*Out) error) error) func(context.Context, *connect.Request[In], *connect.ServerStream[Out]) error {
	return func(ctx context.Context, req *connect.Request[In], to *connect.ServerStream[Out]) error {
		*ctx.Value(readKey{}).(*bool) = true
		return connectError(ctx, do(ctx, calledOf(ctx), req.Msg, to.Send))
	}
}
