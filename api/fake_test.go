package api

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/pathmap"
	"github.com/daycare-run/sandbox/sandbox"
)

// fakeService is a Service of what a test sets; a call of anything else panics.
type fakeService struct {
	put        func(id string, r sandbox.Registration) (sandbox.Sandbox, bool, error)
	get        func(id string) (sandbox.Sandbox, error)
	delete     func(id string) error
	list       func() []sandbox.Sandbox
	exec       func(context.Context, string, sandbox.Request, dockerexec.Output) (sandbox.Result, error)
	containers func() []dockerexec.Container
	health     func(context.Context) sandbox.Health
}

func (f *fakeService) Put(id string, r sandbox.Registration) (sandbox.Sandbox, bool, error) {
	return f.put(id, r)
}
func (f *fakeService) Get(id string) (sandbox.Sandbox, error)    { return f.get(id) }
func (f *fakeService) Delete(id string) error                    { return f.delete(id) }
func (f *fakeService) List() []sandbox.Sandbox                   { return f.list() }
func (f *fakeService) Containers() []dockerexec.Container        { return f.containers() }
func (f *fakeService) Health(ctx context.Context) sandbox.Health { return f.health(ctx) }
func (f *fakeService) Exec(ctx context.Context, id string, r sandbox.Request, out dockerexec.Output) (sandbox.Result, error) {
	return f.exec(ctx, id, r, out)
}

// The limits of the servers in these tests, in bytes.
const (
	testMaxRequest = 2 << 20
	testMaxOutput  = 8
)

// serveFake serves the API with a fake behind it until the test ends.
func serveFake(t *testing.T, service *fakeService) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(New(service, Config{
		Version: "v1.2.3", MaxRequest: testMaxRequest, MaxOutput: testMaxOutput, Log: zerolog.Nop(),
	}))
	t.Cleanup(server.Close)
	return server
}

// exits makes the exec of a command that prints nothing and ends with a code.
func exits(code int) func(context.Context, string, sandbox.Request, dockerexec.Output) (sandbox.Result, error) {
	return func(_ context.Context, _ string, r sandbox.Request, _ dockerexec.Output) (sandbox.Result, error) {
		if r.Started != nil {
			r.Started()
		}
		return ended(code), nil
	}
}

func ended(code int) sandbox.Result {
	return sandbox.Result{Result: dockerexec.Result{ExitCode: code}, Cwd: "/home", Duration: 1500 * time.Microsecond}
}

// testBox is a registered sandbox.
func testBox(t *testing.T) sandbox.Sandbox {
	t.Helper()
	id, err := sandbox.ParseID("agent-7")
	if err != nil {
		t.Fatal(err)
	}
	user, err := sandbox.ParseUserID("alice")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := pathmap.ParseContainer("/home/project")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	return sandbox.Sandbox{ID: id, User: user, WorkingDir: dir, CreatedAt: at, UpdatedAt: at.Add(time.Hour)}
}
