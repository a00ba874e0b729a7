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
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/pathmap"
)

// fakeService answers with what a test sets.
type fakeService struct {
	api.Files
	api.ProcessCalls
	api.DetachedCalls
	box  sandbox.Sandbox
	err  error
	exec func(context.Context, sandbox.Request, dockerexec.Output) (sandbox.Result, error)
	log  *decisions.Log
	// stopping is for the server.
	stopping chan struct{}
}

func (f *fakeService) Put(string, sandbox.Registration) (sandbox.Sandbox, bool, error) {
	return f.box, true, f.err
}
func (f *fakeService) Get(string) (sandbox.Sandbox, error) { return f.box, f.err }
func (f *fakeService) Delete(string) error                 { return f.err }
func (f *fakeService) Ask(string) (func(), error)          { return func() {}, nil }
func (f *fakeService) List() []sandbox.Sandbox             { return []sandbox.Sandbox{f.box} }
func (f *fakeService) Containers() []dockerexec.Container {
	return []dockerexec.Container{{Name: "daycare-sandbox-alice-0123", User: "alice", State: "idle"}}
}
func (f *fakeService) Decisions() *decisions.Log             { return f.log }
func (f *fakeService) Health(context.Context) sandbox.Health { return sandbox.Health{Runtime: "runsc"} }
func (f *fakeService) Exec(ctx context.Context, _ string, r sandbox.Request, out dockerexec.Output) (sandbox.Result, error) {
	return f.exec(ctx, r, out)
}

func (f *fakeService) Explain(_ context.Context, _ string, r sandbox.Confinement) (sandbox.Explanation, error) {
	return sandbox.Explanation{Home: r.Home, Places: []sandbox.Place{{Path: "/home", Why: strings.Join(r.Permissions, " ")}}}, f.err
}

// dial serves the real API with a fake behind it on a Unix socket, and returns a client of it.
func dial(t *testing.T, service *fakeService) *client.Client {
	t.Helper()
	return dialHandler(t, api.New(service, api.Config{
		Authenticator: anyone, Version: "v1.2.3", MaxRequest: 4 << 20, MaxOutput: 1 << 20, Stopping: service.stopping, Log: zerolog.Nop(),
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

func box(t *testing.T) sandbox.Sandbox {
	t.Helper()
	id, idErr := sandbox.ParseID("agent-7")
	user, userErr := sandbox.ParseUserID("alice")
	dir, dirErr := pathmap.ParseContainer("/home/project")
	if err := errors.Join(idErr, userErr, dirErr); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	return sandbox.Sandbox{ID: id, User: user, WorkingDir: dir, CreatedAt: at, UpdatedAt: at}
}

func TestPlainCalls(t *testing.T) {
	c := dial(t, &fakeService{box: box(t)})
	ctx := t.Context()
	want := types.Sandbox{
		ID: "agent-7", UserID: "alice", Mounts: []types.Mount{},
		Permissions: types.Permissions{WorkingDir: "/home/project", WriteDirs: []string{}, ReadDirs: []string{}},
		CreatedAt:   box(t).CreatedAt, UpdatedAt: box(t).UpdatedAt,
	}
	put, putErr := c.Put(ctx, "agent-7", types.Registration{UserID: "alice"})
	got, getErr := c.Get(ctx, "agent-7")
	list, listErr := c.List(ctx)
	containers, containersErr := c.Containers(ctx)
	health, healthErr := c.Health(ctx)
	if err := errors.Join(putErr, getErr, listErr, containersErr, healthErr, c.Delete(ctx, "agent-7")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]types.Sandbox{want, want, want}, append(list, put, got)); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if len(containers) != 1 || containers[0].UserID != "alice" || health.Runtime != "runsc" || health.Status != "ok" {
		t.Errorf("%+v %+v", containers, health)
	}
}

func TestBufferedExec(t *testing.T) {
	c := dial(t, &fakeService{exec: func(_ context.Context, r sandbox.Request, out dockerexec.Output) (sandbox.Result, error) {
		err := errors.Join(out(dockerexec.Stdout, []byte("text\n")), out(dockerexec.Stderr, []byte{0, 0xff}))
		return sandbox.Result{Result: dockerexec.Result{ExitCode: len(r.Command)}}, err
	}})
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
	for _, tt := range []struct {
		err  error
		kind types.Kind
	}{
		{cerrdefs.ErrInvalidArgument, types.Invalid},
		{cerrdefs.ErrPermissionDenied, types.Denied},
		{cerrdefs.ErrNotFound, types.NotFound},
		{cerrdefs.ErrConflict, types.Conflict},
		{cerrdefs.ErrResourceExhausted, types.Busy},
		{cerrdefs.ErrUnavailable, types.Unavailable},
		{errors.New("no engine"), types.Engine},
	} {
		c := dial(t, &fakeService{err: tt.err})
		_, err := c.Get(t.Context(), "agent-7")
		var failure *client.Error
		if !errors.As(err, &failure) || failure.Kind != tt.kind || failure.Message != tt.err.Error() {
			t.Errorf("%v became %#v", tt.err, err)
		}
	}
}

func TestIDsCannotLeaveTheirPath(t *testing.T) {
	var failure *client.Error
	c := dial(t, &fakeService{err: cerrdefs.ErrInvalidArgument})
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

// Whoever answers there need not be the service.
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
		{attachErr, "the service answered 418 I'm a teapot"},
		{putErr, "cannot read the service's answer"},
	} {
		if tt.err == nil || !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("%v, want %s", tt.err, tt.want)
		}
	}
}

// anyone is an authenticator that admits everybody, to act for everyone.
func anyone(*http.Request) (access.Caller, error) {
	return access.Caller{Name: "test", Users: sandbox.Everyone()}, nil
}
