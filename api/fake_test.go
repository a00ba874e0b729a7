package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/attach"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/pathmap"
)

// fakeService is a Service of what a test sets; a call of anything else panics.
type fakeService struct {
	busy       error // what Ask says
	put        func(id string, r sandbox.Registration) (sandbox.Sandbox, bool, error)
	get        func(id string) (sandbox.Sandbox, error)
	delete     func(id string) error
	list       func() []sandbox.Sandbox
	exec       func(context.Context, string, sandbox.Request, dockerexec.Output) (sandbox.Result, error)
	containers func() []dockerexec.Container
	health     func(context.Context) sandbox.Health
	explain    func(sandbox.Confinement) (sandbox.Explanation, error)
	decisions  func() *decisions.Log
	// stopping is for the server; nil for one that does not stop.
	stopping <-chan struct{}
	fakeDetached
	fakeFiles
	fakeProcesses
}

func (f *fakeService) Put(id string, r sandbox.Registration) (sandbox.Sandbox, bool, error) {
	return f.put(id, r)
}
func (f *fakeService) Get(id string) (sandbox.Sandbox, error)    { return f.get(id) }
func (f *fakeService) Delete(id string) error                    { return f.delete(id) }
func (f *fakeService) List() []sandbox.Sandbox                   { return f.list() }
func (f *fakeService) Ask(string) (func(), error)                { return func() {}, f.busy }
func (f *fakeService) Containers() []dockerexec.Container        { return f.containers() }
func (f *fakeService) Decisions() *decisions.Log                 { return f.decisions() }
func (f *fakeService) Health(ctx context.Context) sandbox.Health { return f.health(ctx) }
func (f *fakeService) Exec(ctx context.Context, id string, r sandbox.Request, out dockerexec.Output) (sandbox.Result, error) {
	return f.exec(ctx, id, r, out)
}
func (f *fakeService) Explain(_ context.Context, _ string, r sandbox.Confinement) (sandbox.Explanation, error) {
	return f.explain(r)
}

// fakeDetached is the part of a fakeService for execs that go on without their caller: those of an exec store, which
// have one user.
type fakeDetached struct {
	execs *attach.Store[sandbox.Result]
	run   func(context.Context, *sandbox.Detached) (sandbox.Result, error)
	// startErr is what StartExec fails with; nil for nothing.
	startErr error
}

func (f *fakeDetached) StartExec(_ context.Context, _ string, r sandbox.Request, stdin bool) (*sandbox.Detached, error) {
	if f.startErr != nil {
		return nil, f.startErr
	}
	return f.execs.Start(attach.Command{User: "alice", Text: r.Command, Terminal: r.Terminal != nil, Stdin: stdin}, f.run)
}
func (f *fakeDetached) DetachedExecs(string) ([]*sandbox.Detached, error) {
	return f.execs.List("alice"), nil
}
func (f *fakeDetached) DetachedExec(_, execID string) (*sandbox.Detached, error) {
	return f.execs.Get("alice", execID)
}

// fakeFiles is the part of a fakeService for files. None of its functions needs to know the sandbox.
type fakeFiles struct {
	read     func(sandbox.ReadRequest) (sandbox.ReadResult, error)
	write    func(sandbox.WriteRequest) (sandbox.Written, error)
	upload   func(sandbox.UploadRequest) (sandbox.Written, error)
	download func(path string) (sandbox.Download, error)
	listDir  func(path string) (sandbox.Listing, error)
	stat     func(path string) (sandbox.Entry, error)
	mkdir    func(path string, parents bool) error
	move     func(sandbox.MoveRequest) error
	remove   func(path string, recursive bool) error
}

func (f *fakeFiles) Read(_ context.Context, _ string, r sandbox.ReadRequest) (sandbox.ReadResult, error) {
	return f.read(r)
}
func (f *fakeFiles) Write(_ context.Context, _ string, r sandbox.WriteRequest) (sandbox.Written, error) {
	return f.write(r)
}
func (f *fakeFiles) Upload(_ context.Context, _ string, r sandbox.UploadRequest) (sandbox.Written, error) {
	return f.upload(r)
}
func (f *fakeFiles) Download(_ context.Context, _, path string) (sandbox.Download, error) {
	return f.download(path)
}
func (f *fakeFiles) ListDir(_ context.Context, _, path string) (sandbox.Listing, error) {
	return f.listDir(path)
}
func (f *fakeFiles) Stat(_ context.Context, _, path string) (sandbox.Entry, error) {
	return f.stat(path)
}
func (f *fakeFiles) Mkdir(_ context.Context, _, path string, parents bool) error {
	return f.mkdir(path, parents)
}
func (f *fakeFiles) Move(_ context.Context, _ string, r sandbox.MoveRequest) error { return f.move(r) }
func (f *fakeFiles) Remove(_ context.Context, _, path string, recursive bool) error {
	return f.remove(path, recursive)
}

// fakeProcesses is the part of a fakeService for processes. None of its functions needs to know the sandbox.
type fakeProcesses struct {
	start     func(sandbox.ProcessRequest) (process.Record, []string, error)
	processes func() ([]process.Record, error)
	process   func(processID string) (process.Record, error)
	stop      func(context.Context, string, syscall.Signal) (process.Record, error)
	stopAll   func() ([]process.Record, error)
	removes   func(processID string) error
	readLog   func(sandbox.LogQuery) (sandbox.LogPart, error)
	followLog func(context.Context, sandbox.LogQuery, func(sandbox.LogPart) error) error
}

func (f *fakeProcesses) StartProcess(_ context.Context, _ string, r sandbox.ProcessRequest) (process.Record, []string, error) {
	return f.start(r)
}
func (f *fakeProcesses) Processes(string) ([]process.Record, error) { return f.processes() }
func (f *fakeProcesses) Process(_, processID string) (process.Record, error) {
	return f.process(processID)
}
func (f *fakeProcesses) StopProcess(ctx context.Context, _, processID string, signal syscall.Signal) (process.Record, error) {
	return f.stop(ctx, processID, signal)
}
func (f *fakeProcesses) StopProcesses(context.Context, string) ([]process.Record, error) {
	return f.stopAll()
}
func (f *fakeProcesses) RemoveProcess(_ context.Context, _, processID string) error {
	return f.removes(processID)
}
func (f *fakeProcesses) ReadProcessLog(_ context.Context, _, _ string, q sandbox.LogQuery) (sandbox.LogPart, error) {
	return f.readLog(q)
}
func (f *fakeProcesses) FollowProcessLog(ctx context.Context, _, _ string, q sandbox.LogQuery, each func(sandbox.LogPart) error) error {
	return f.followLog(ctx, q, each)
}

// The limits of the servers in these tests, in bytes.
const (
	testMaxRequest = 2 << 20
	testMaxOutput  = 8
)

// serveFake serves the API with a fake behind it until the test ends.
func serveFake(t *testing.T, service *fakeService) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(serveHandler(service))
	t.Cleanup(server.Close)
	return server
}

func serveHandler(service *fakeService) http.Handler {
	return New(service, Config{
		Authenticator: anyone, Version: "v1.2.3", MaxRequest: testMaxRequest, MaxOutput: testMaxOutput, Stopping: service.stopping, Log: zerolog.Nop(),
	})
}

// newService makes the real service over temporary folders, without Docker: commands do nothing and exit with 0, and
// processes run without doing anything.
func newService(t testing.TB) *sandbox.Service {
	return sandboxtest.New(t, sandboxtest.Options{
		Executor: sandboxtest.Executor{List: []dockerexec.Container{
			{Name: "daycare-sandbox-alices", User: "alice", Fingerprint: dockerexec.Spec{}.Fingerprint(), Runtime: "runsc", State: "idle"},
		}},
		Config: func(cfg *sandbox.Config) { cfg.MaxOutput = testMaxOutput },
	})
}

// anyone is an authenticator that admits everybody, to act for everyone.
func anyone(*http.Request) (access.Caller, error) {
	return access.Caller{Name: "test", Users: sandbox.Everyone()}, nil
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
	data, err := pathmap.ParseContainer("/mnt/data")
	if err != nil {
		t.Fatal(err)
	}
	source, err := pathmap.ParseHost("/data/users/alice/data")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	return sandbox.Sandbox{
		ID: id, User: user, WorkingDir: dir, WriteDirs: []pathmap.ContainerPath{data}, Network: true, AppID: "crm",
		Mounts: []sandbox.Mount{{Source: source, Target: data}}, CreatedAt: at, UpdatedAt: at.Add(time.Hour),
	}
}
