// Package api is the HTTP surface: the routes, their access, and how errors become answers.
//
// api.go has the table of routes and the one map from error classes to statuses; exec.go the
// buffered and streamed exec, attach.go the one with stdin and signals over a WebSocket, encode.go
// how a command's bytes become JSON.
package api

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api/apitypes"
	"github.com/daycare-run/sandbox/dockerexec"
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
	Containers() []dockerexec.Container
	Health(context.Context) sandbox.Health
}

// Config is what the API needs; all fields must be set.
type Config struct {
	// Version is the service's, for health.
	Version string
	// MaxRequest bounds a request's body, in bytes.
	MaxRequest int64
	// MaxOutput is how many bytes of each stream a buffered exec keeps.
	MaxOutput int64
	Log       zerolog.Logger
}

// server answers requests.
type server struct {
	cfg     Config
	service Service
}

// route is one line of the API.
type route struct {
	pattern string
	handle  func(*server, http.ResponseWriter, *http.Request) error
}

// The routes. Every one is for whoever may open the socket, which is its owner alone: access is
// decided by the socket's mode.
var routes = []route{
	{"GET /v1/health", (*server).health},
	{"GET /v1/containers", (*server).containers},
	{"GET /v1/sandboxes", (*server).list},
	{"PUT /v1/sandboxes/{id}", (*server).put},
	{"GET /v1/sandboxes/{id}", (*server).get},
	{"DELETE /v1/sandboxes/{id}", (*server).delete},
	{"POST /v1/sandboxes/{id}/exec", (*server).exec},
	{"GET /v1/sandboxes/{id}/exec", (*server).attach},
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
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		s.fail(w, req, fmt.Errorf("there is no %s %s here: %w", req.Method, req.URL.Path, cerrdefs.ErrNotFound))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// The mux would redirect a path with such a component, and the caller would be told about a
		// path that it did not ask for.
		if clean := path.Clean(req.URL.Path); req.URL.Path != clean && req.URL.Path != clean+"/" {
			s.fail(w, req, fmt.Errorf("the path %q has an empty component, . or ..: %w", req.URL.Path, cerrdefs.ErrInvalidArgument))
			return
		}
		mux.ServeHTTP(w, req)
	})
}

// serve runs one route, with the body bounded, and logs it without anything that it carried.
func (s *server) serve(w http.ResponseWriter, req *http.Request, r route) {
	begun := time.Now()
	req.Body = http.MaxBytesReader(w, req.Body, s.cfg.MaxRequest)
	err := r.handle(s, w, req)
	if err != nil {
		s.fail(w, req, err)
	}
	s.cfg.Log.Debug().Str("route", r.pattern).Str("sandbox", req.PathValue("id")).
		Dur("took", time.Since(begun)).AnErr("error", err).Msg("call")
}

// classes is the one place where an error's class becomes a kind and a status. What has no class is
// the engine's fault.
var classes = []struct {
	is     func(error) bool
	kind   apitypes.Kind
	status int
}{
	{isTooLarge, apitypes.TooLarge, http.StatusRequestEntityTooLarge},
	{cerrdefs.IsInvalidArgument, apitypes.Invalid, http.StatusBadRequest},
	{cerrdefs.IsPermissionDenied, apitypes.Denied, http.StatusForbidden},
	{cerrdefs.IsNotFound, apitypes.NotFound, http.StatusNotFound},
	{cerrdefs.IsConflict, apitypes.Conflict, http.StatusConflict},
	{cerrdefs.IsResourceExhausted, apitypes.Busy, http.StatusTooManyRequests},
	{cerrdefs.IsUnavailable, apitypes.Unavailable, http.StatusServiceUnavailable},
	{func(error) bool { return true }, apitypes.Engine, http.StatusBadGateway},
}

func isTooLarge(err error) bool {
	var tooLarge *http.MaxBytesError
	return errors.As(err, &tooLarge)
}

func classify(err error) (apitypes.Error, int) {
	for _, class := range classes {
		if class.is(err) {
			// A message may quote what somebody sent; JSON takes UTF-8 alone.
			return apitypes.Error{Kind: class.kind, Message: strings.ToValidUTF8(err.Error(), "\uFFFD")}, class.status
		}
	}
	panic("the last class takes every error")
}

func (s *server) fail(w http.ResponseWriter, req *http.Request, err error) {
	if req.Context().Err() != nil {
		return // nobody is there to read it
	}
	failure, status := classify(err)
	s.answer(w, status, apitypes.Failure{Error: failure})
}

func (s *server) answer(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		s.cfg.Log.Error().Err(err).Msg("cannot encode an answer")
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}

// decode reads a JSON body strictly: unknown and duplicate keys, wrong types and anything after the
// value are the caller's faults.
func decode(req *http.Request, into any) error {
	if kind := req.Header.Get("Content-Type"); kind != "" {
		if media, _, err := mime.ParseMediaType(kind); err != nil || media != "application/json" {
			return fmt.Errorf("the body has Content-Type %q, not application/json: %w", kind, cerrdefs.ErrInvalidArgument)
		}
	}
	body, err := io.ReadAll(req.Body)
	if isTooLarge(err) {
		return fmt.Errorf("the body is larger than the limit: %w", err)
	}
	if err != nil {
		return fmt.Errorf("the body was cut short: %v: %w", err, cerrdefs.ErrInvalidArgument)
	}
	return decodeJSON(body, into)
}

func decodeJSON(text []byte, into any) error {
	if len(bytes.TrimSpace(text)) == 0 {
		return fmt.Errorf("the body is empty; it has to be a JSON object: %w", cerrdefs.ErrInvalidArgument)
	}
	err := json.Unmarshal(text, into, json.RejectUnknownMembers(true), json.MatchCaseInsensitiveNames(false))
	var semantic *json.SemanticError
	var syntactic *jsontext.SyntacticError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, json.ErrUnknownName) && errors.As(err, &semantic):
		return fmt.Errorf("unknown key %s: %w", field(semantic.JSONPointer), cerrdefs.ErrInvalidArgument)
	case errors.Is(err, jsontext.ErrDuplicateName) && errors.As(err, &syntactic):
		return fmt.Errorf("key %s is given twice: %w", field(syntactic.JSONPointer), cerrdefs.ErrInvalidArgument)
	case errors.As(err, &semantic):
		return fmt.Errorf("%s cannot be a JSON %s: %w", field(semantic.JSONPointer), kindName(semantic.JSONKind), cerrdefs.ErrInvalidArgument)
	default:
		return fmt.Errorf("the body is not JSON: %v: %w", err, cerrdefs.ErrInvalidArgument)
	}
}

// field is a JSON pointer in the dotted form that messages use.
func field(pointer jsontext.Pointer) string {
	name := ""
	for token := range pointer.Tokens() {
		if name != "" {
			name += "."
		}
		name += token
	}
	if name == "" {
		return "the body"
	}
	return name
}

func kindName(kind jsontext.Kind) string {
	if kind == 0 {
		return "value of this form"
	}
	return kind.String()
}
