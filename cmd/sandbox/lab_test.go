package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// asCommand is a variable that makes the tests' own program the command line.
const asCommand = "SANDBOX_TESTS_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// lab is a real service with its API on a socket. Its sandbox "agent-7" has the working directory /home/project.
type lab struct {
	*sandboxtest.Lab
	t        *testing.T
	socket   string
	stopping chan struct{} // closed by a test whose service stops
	bodies   sync.Map      // of the last requests, by the last part of their path
	// stall is closed when a download has begun that is to go no further; nil for none.
	stall   chan struct{}
	stallAt int   // which Write blocks
	nodes   hosts // of the cluster; nil for one host alone
}

// newLab makes a lab with these processes. Without run, commands do nothing and exit with 0.
func newLab(t *testing.T, run sandboxtest.RunFunc, processes ...process.Record) *lab {
	t.Helper()
	return newLabWith(t, run, func(o *sandboxtest.Options) { o.Processes = processes })
}

// newLabWith makes a lab in which change changes what is below the service.
func newLabWith(t *testing.T, run sandboxtest.RunFunc, change func(*sandboxtest.Options)) *lab {
	t.Helper()
	l := &lab{t: t, socket: filepath.Join(t.TempDir(), "api.sock"), stopping: make(chan struct{}), stallAt: 3}
	l.Lab = sandboxtest.NewLab(t, run, change)
	if _, _, err := l.Put("agent-7", sandbox.Registration{UserID: "alice", Network: true, WorkingDir: "/home/project"}); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", l.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.Server{
		Listener: listener,
		Config:   &http.Server{Handler: l.handler(), ReadHeaderTimeout: time.Minute},
	}
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close() // what is still being answered may write to the lab's folder
	})
	return l
}

// handler is the API, which keeps what it is asked.
func (l *lab) handler() http.Handler {
	next := api.New(l.Service, api.Config{Authenticator: anyone, Nodes: &l.nodes, Credentials: l.Credentials, Version: "v1", MaxRequest: 16 << 20, MaxOutput: 1 << 20, Stopping: l.stopping, Log: zerolog.Nop()})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Content-Type") == "application/json" {
			body, err := io.ReadAll(req.Body)
			if err != nil {
				l.t.Error(err)
			}
			l.bodies.Store(filepath.Base(req.URL.Path), body)
			req.Body = io.NopCloser(bytes.NewReader(body))
		}
		if l.stall != nil && req.Method == http.MethodGet && (strings.HasSuffix(req.URL.Path, "/files") || strings.HasSuffix(req.URL.Path, "/archive")) {
			w = &stalled{ResponseWriter: w, begun: l.stall, at: l.stallAt, until: req.Context().Done()}
		}
		next.ServeHTTP(w, req)
	})
}

// behind puts a server between the command line and the API, which passes requests on to next.
func (l *lab) behind(serve func(next http.Handler, w http.ResponseWriter, req *http.Request)) {
	l.t.Helper()
	next := l.handler()
	listener, err := net.Listen("unix", filepath.Join(l.t.TempDir(), "s"))
	if err != nil {
		l.t.Fatal(err)
	}
	server := httptest.Server{Listener: listener, Config: &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { serve(next, w, req) }),
		ReadHeaderTimeout: time.Minute,
	}}
	server.Start()
	l.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	l.socket = listener.Addr().String()
}

// asked reads the body of the last request to a path that ends so.
func (l *lab) asked(last string, into any) {
	l.t.Helper()
	body, _ := l.bodies.Load(last)
	text, _ := body.([]byte)
	if err := json.Unmarshal(text, into); err != nil {
		l.t.Fatalf("%s: %q: %v", last, text, err)
	}
}

// stalled is an answer one Write of which blocks until the caller has gone.
type stalled struct {
	http.ResponseWriter
	begun  chan struct{}
	until  <-chan struct{}
	at     int
	writes int
}

func (s *stalled) Write(p []byte) (int, error) {
	if s.writes++; s.writes == s.at {
		close(s.begun)
		<-s.until
	}
	return s.ResponseWriter.Write(p)
}

// run runs a command line.
func (l *lab) run(ctx context.Context, stdin string, args ...string) (stdout, stderr string, err error) {
	var out, fault bytes.Buffer
	root := rootCommand()
	root.SetArgs(append([]string{"--socket", l.socket}, args...))
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(&fault)
	err = root.ExecuteContext(ctx)
	return out.String(), fault.String(), err
}

// command is a command line that runs as a process of its own.
func (l *lab) command(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], append([]string{"--socket", l.socket}, args...)...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	return cmd
}

// ok runs a command line that succeeds, and returns what it prints.
func (l *lab) ok(stdin string, args ...string) string {
	l.t.Helper()
	stdout, stderr, err := l.run(l.t.Context(), stdin, args...)
	if err != nil {
		l.t.Fatalf("%q: %v %s", args, err, stderr)
	}
	return stdout
}

// host is where a path of the home is here.
func (l *lab) host(path string) string {
	path = strings.TrimPrefix(strings.TrimPrefix(path, "~"), "/home")
	return filepath.Join(sandboxtest.Home(l.Dir, "alice"), path)
}

// mkdir makes a directory of the home.
func (l *lab) mkdir(name string) {
	l.t.Helper()
	if err := l.Mkdir(l.t.Context(), "a", "~/"+name, true); err != nil {
		l.t.Fatal(err)
	}
}

// anyone is an authenticator that admits everybody, to act for everyone.
func anyone(*http.Request) (access.Caller, error) {
	return access.Caller{Name: "test", Users: ids.Everyone()}, nil
}
