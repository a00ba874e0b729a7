package client_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api"
	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
)

// newLab makes a real service, whose commands do what run says.
func newLab(t *testing.T, run sandboxtest.RunFunc) *lab {
	t.Helper()
	return &lab{Lab: sandboxtest.NewLab(t, run), stopping: make(chan struct{})}
}

type lab struct {
	*sandboxtest.Lab
	stopping chan struct{} // closed by a test whose service stops
}

// dial serves a lab on a Unix socket, and returns a client of it.
func (l *lab) dial(t *testing.T) *client.Client {
	t.Helper()
	return dialHandler(t, api.New(l.Service, api.Config{
		Authenticator: anyone, Credentials: l.Credentials, Version: "v1.2.3", MaxRequest: 4 << 20, MaxOutput: 1 << 20, Stopping: l.stopping, Log: zerolog.Nop(),
	}))
}

func dialHandler(t *testing.T, handler http.Handler) *client.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "api.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()
	c := client.New(socket)
	t.Cleanup(func() {
		c.Close()
		_ = server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return c
}

func TestPlainCalls(t *testing.T) {
	l := sandboxtest.NewLab(t, nil, func(o *sandboxtest.Options) {
		o.Executor = sandboxtest.Executor{List: []dockerexec.Summary{{Name: "daycare-sandbox-alice-0123", User: "alice", State: "idle"}}}
	})
	if err := l.Delete(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	c, ctx := (&lab{Lab: l}).dial(t), t.Context()
	put, putErr := c.Put(ctx, "agent-7", types.Registration{UserID: "alice", Permissions: types.Permissions{WorkingDir: "/home/project"}})
	got, getErr := c.Get(ctx, "agent-7")
	list, listErr := c.List(ctx)
	containers, containersErr := c.Containers(ctx)
	health, healthErr := c.Health(ctx)
	if err := errors.Join(putErr, getErr, listErr, containersErr, healthErr, c.Delete(ctx, "agent-7")); err != nil {
		t.Fatal(err)
	}
	want := types.Sandbox{
		ID: "agent-7", UserID: "alice", Mounts: []types.Mount{},
		Permissions: types.Permissions{WorkingDir: "/home/project", WriteDirs: []string{}, ReadDirs: []string{}},
		CreatedAt:   put.CreatedAt, UpdatedAt: put.UpdatedAt,
	}
	if diff := cmp.Diff([]types.Sandbox{want, want, want}, append(list, put, got)); diff != "" || put.CreatedAt.IsZero() {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if len(containers) != 1 || containers[0].UserID != "alice" || health.Runtime != "runsc" || health.Status != "ok" || health.Version != "v1.2.3" {
		t.Errorf("%+v %+v", containers, health)
	}
	if left, err := c.List(ctx); err != nil || len(left) > 0 {
		t.Errorf("%+v %v", left, err)
	}
}

func TestCredentials(t *testing.T) {
	l := newLab(t, nil)
	c, ctx, value := l.dial(t), t.Context(), "a value"
	terms := types.CredentialTerms{Hosts: []string{"api.example.org"}, CredentialPlace: types.CredentialPlace{Query: "key"}, Methods: []string{"GET"}}
	put, putErr := c.PutCredential(ctx, "search", types.PutCredential{CredentialTerms: terms, Value: &value})
	terms.Methods = nil
	kept, keptErr := c.PutCredential(ctx, "search", types.PutCredential{CredentialTerms: terms})
	got, getErr := c.Credential(ctx, "search")
	list, listErr := c.Credentials(ctx)
	sealed, valueErr := l.ValueOf("search")
	if err := errors.Join(putErr, keptErr, getErr, listErr, valueErr, c.RemoveCredential(ctx, "search")); err != nil {
		t.Fatal(err)
	}
	want := types.Credential{Name: "search", CredentialTerms: terms, Placeholder: put.Placeholder, CreatedAt: put.CreatedAt, UpdatedAt: kept.UpdatedAt}
	if diff := cmp.Diff([]types.Credential{want, want, want}, append(list, kept, got)); diff != "" || len(put.Methods) != 1 || sealed != value {
		t.Errorf("%+v %q; want (-), got (+):\n%s", put, sealed, diff)
	}
	if left, err := c.Credentials(ctx); err != nil || len(left) > 0 {
		t.Errorf("%+v %v", left, err)
	}
}

func TestBufferedExec(t *testing.T) {
	c := newLab(t, sandboxtest.Started(func(_ context.Context, command warm.Command, out session.Output) (warm.Result, error) {
		err := errors.Join(out(session.Stdout, []byte("text\n")), out(session.Stderr, []byte{0, 0xff}))
		return warm.Result{Result: session.Result{ExitCode: len(command.Shell)}}, err
	})).dial(t)
	out, err := c.Exec(t.Context(), "agent-7", types.Exec{Command: "four"})
	if err != nil {
		t.Fatal(err)
	}
	stdout, stdoutErr := client.Stdout(out)
	stderr, stderrErr := client.Stderr(out)
	if err := errors.Join(stdoutErr, stderrErr); err != nil {
		t.Fatal(err)
	}
	if string(stdout) != "text\n" || string(stderr) != "\x00\xff" || *out.ExitCode != 4 {
		t.Errorf("%q %q %+v", stdout, stderr, out.Result)
	}
}

func TestFailuresHaveTheirKind(t *testing.T) {
	fault := errors.New("no engine")
	l := newLab(t, func(context.Context, dockerexec.Spec, warm.Command, session.Output) (warm.Result, error) {
		return warm.Result{}, fault
	})
	c, ctx := l.dial(t), t.Context()
	get := func(id string) error { _, err := c.Get(ctx, id); return err }
	exec := func(e types.Exec) error { e.Command = "ls"; _, err := c.Exec(ctx, "agent-7", e); return err }
	failing := func(err error) error { fault = err; return exec(types.Exec{}) }
	_, anothers := c.Put(ctx, "agent-7", types.Registration{UserID: "bob"})
	for _, tt := range []struct {
		err     error
		kind    types.Kind
		message string // a part of it
	}{
		{get("A..B"), types.Invalid, `sandbox id "A..B"`},
		{exec(types.Exec{Permissions: []string{"@events"}}), types.Denied, "@events is not granted"},
		{get("none"), types.NotFound, `sandbox "none" is not registered`},
		{anothers, types.Conflict, `belongs to user "alice"`},
		{failing(cerrdefs.ErrResourceExhausted), types.Busy, cerrdefs.ErrResourceExhausted.Error()},
		{failing(cerrdefs.ErrUnavailable), types.Unavailable, cerrdefs.ErrUnavailable.Error()},
		{failing(errors.New("no engine")), types.Engine, "no engine"},
	} {
		var failure *client.Error
		if !errors.As(tt.err, &failure) || failure.Kind != tt.kind || !strings.Contains(failure.Message, tt.message) {
			t.Errorf("%s: %#v", tt.kind, tt.err)
		}
	}
}

func TestIDsCannotLeaveTheirPath(t *testing.T) {
	var failure *client.Error
	c := newLab(t, nil).dial(t)
	for _, id := range []string{"..", "a/../../health", "a/exec", "?x", "#", ""} {
		if err := c.Delete(t.Context(), id); !errors.As(err, &failure) {
			t.Errorf("id %q: %v", id, err)
		}
	}
}

func TestServiceThatDoesNotRun(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none.sock")
	c := client.New(socket)
	defer c.Close()
	_, healthErr := c.Health(t.Context())
	_, attachErr := c.Attach(t.Context(), "agent-7", types.Exec{Command: "ls"}, client.Streams{})
	for _, err := range []error{healthErr, attachErr} {
		if err == nil || !strings.Contains(err.Error(), "no service answers at "+socket+": is sandboxd running?") {
			t.Error(err)
		}
	}
}

// What answers at the address need not be the service.
func TestSomethingElseThatAnswers(t *testing.T) {
	c := dialHandler(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			http.Error(w, "hello", http.StatusTeapot)
		}
	}))
	_, getErr := c.Get(t.Context(), "agent-7")
	_, attachErr := c.Attach(t.Context(), "agent-7", types.Exec{Command: "ls"}, client.Streams{})
	_, putErr := c.Put(t.Context(), "agent-7", types.Registration{UserID: "alice"})
	for _, tt := range []struct {
		err  error
		want string
	}{
		{getErr, "the service answered 418 I'm a teapot"},
		{attachErr, "the service does not stream what commands print"},
		{putErr, "cannot read the service's answer"},
	} {
		if tt.err == nil || !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("%v, want %s", tt.err, tt.want)
		}
	}
}

// anyone is an authenticator that admits everybody, to act for everyone.
func anyone(*http.Request) (access.Caller, error) {
	return access.Caller{Name: "test", Users: ids.Everyone()}, nil
}
