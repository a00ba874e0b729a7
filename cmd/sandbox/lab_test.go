package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/attach"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/pathmap"
)

// lab is the API on a socket, with a service behind it whose files are in a directory. What it does not
// have panics.
type lab struct {
	nothing
	t            *testing.T
	socket, home string
	put          map[string]sandbox.Registration
	explain      sandbox.Explanation
	// log has what egress decided; stopping is closed when the service stops.
	log      *decisions.Log
	stopping chan struct{}
	// exec is a command; asked and explained are what the last calls asked for.
	exec      func(sandbox.Request, dockerexec.Output) (sandbox.Result, error)
	asked     sandbox.Request
	explained sandbox.Confinement
	// keeper has the processes.
	keeper
	// execs are those that go on without their caller, which do what running says.
	execs   *attach.Store[sandbox.Result]
	running func(context.Context, *sandbox.Detached) (sandbox.Result, error)
	// stall is closed when a download has begun that is to go no further; nil for none.
	stall chan struct{}
}

// nothing is below all that a lab has.
type nothing struct{ api.Service }

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{
		t: t, socket: filepath.Join(t.TempDir(), "api.sock"), home: t.TempDir(), put: map[string]sandbox.Registration{},
		log: decisions.New(100), stopping: make(chan struct{}),
		execs: attach.NewStore[sandbox.Result](attach.Config{Quotas: quota.New(quota.Limits{PerUser: quota.Bounds{DetachedExecs: 3}, Total: quota.Bounds{DetachedExecs: 3}}), Keep: time.Hour}),
	}
	t.Cleanup(l.execs.Shutdown)
	listener, err := net.Listen("unix", l.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler:           api.New(l, api.Config{Authenticator: anyone, Version: "v1", MaxRequest: 16 << 20, MaxOutput: 1 << 20, Stopping: l.stopping, Log: zerolog.Nop()}),
		ReadHeaderTimeout: time.Minute,
	}
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	return l
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

// ok runs a command line that succeeds, and returns what it prints.
func (l *lab) ok(stdin string, args ...string) string {
	l.t.Helper()
	stdout, stderr, err := l.run(l.t.Context(), stdin, args...)
	if err != nil {
		l.t.Fatalf("%q: %v %s", args, err, stderr)
	}
	return stdout
}

// file is a path of the sandbox here.
func (l *lab) file(path string) string {
	path = strings.TrimPrefix(strings.TrimPrefix(path, "~"), "/home")
	return filepath.Join(l.home, path)
}

func (l *lab) Put(id string, r sandbox.Registration) (sandbox.Sandbox, bool, error) {
	l.put[id] = r
	box, err := l.Get(id)
	return box, true, err
}

func (l *lab) Get(id string) (sandbox.Sandbox, error) {
	parsed, idErr := sandbox.ParseID(id)
	user, userErr := sandbox.ParseUserID("alice")
	dir, dirErr := pathmap.ParseContainer("/home")
	if id == "agent-7" {
		dir, dirErr = pathmap.ParseContainer("/home/project")
	}
	return sandbox.Sandbox{ID: parsed, User: user, WorkingDir: dir}, errors.Join(idErr, userErr, dirErr)
}

func (l *lab) Explain(_ context.Context, _ string, r sandbox.Confinement) (sandbox.Explanation, error) {
	l.explained = r
	return l.explain, nil
}

func (l *lab) Exec(_ context.Context, _ string, r sandbox.Request, out dockerexec.Output) (sandbox.Result, error) {
	l.asked = r
	r.Started()
	return l.exec(r, out)
}

func (l *lab) StartExec(_ context.Context, _ string, r sandbox.Request, stdin bool) (*sandbox.Detached, error) {
	l.asked = r
	return l.execs.Start(attach.Command{User: "alice", Text: r.Command, Terminal: r.Terminal != nil, Stdin: stdin}, l.running)
}

func (l *lab) Ask(string) (func(), error) { return func() {}, nil }

func (l *lab) DetachedExecs(string) ([]*sandbox.Detached, error) { return l.execs.List("alice"), nil }

func (l *lab) DetachedExec(_, execID string) (*sandbox.Detached, error) {
	return l.execs.Get("alice", execID)
}

func (l *lab) Decisions() *decisions.Log { return l.log }

func (l *lab) Read(_ context.Context, _ string, r sandbox.ReadRequest) (sandbox.ReadResult, error) {
	content, err := os.ReadFile(l.file(r.Path))
	if err != nil {
		return sandbox.ReadResult{}, cerrdefs.ErrNotFound
	}
	kind := sandbox.ReadText
	if r.Binary {
		kind = sandbox.ReadBinary
	}
	return sandbox.ReadResult{Type: kind, Content: content, OutputLines: r.Limit, TotalLines: 9, Truncated: r.Limit > 0}, nil
}

func (l *lab) Write(_ context.Context, _ string, r sandbox.WriteRequest) (sandbox.Written, error) {
	return l.take(r.Path, bytes.NewReader(r.Content), r.Append)
}

func (l *lab) Upload(_ context.Context, _ string, r sandbox.UploadRequest) (sandbox.Written, error) {
	return l.take(r.Path, r.Body, false)
}

func (l *lab) take(path string, body io.Reader, more bool) (sandbox.Written, error) {
	if !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "~/") {
		return sandbox.Written{}, cerrdefs.ErrInvalidArgument
	}
	content, err := io.ReadAll(body)
	if err != nil {
		return sandbox.Written{}, err
	}
	if more {
		old, _ := os.ReadFile(l.file(path))
		content = append(old, content...)
	}
	return sandbox.Written{Bytes: int64(len(content)), SandboxPath: path}, os.WriteFile(l.file(path), content, 0o600)
}

func (l *lab) Download(ctx context.Context, _, path string) (sandbox.Download, error) {
	file, err := os.Open(l.file(path))
	if err != nil {
		return sandbox.Download{}, cerrdefs.ErrNotFound
	}
	info, err := file.Stat()
	d := sandbox.Download{ReadSeekCloser: file, Name: info.Name(), Size: info.Size(), ModTime: info.ModTime()}
	if l.stall != nil {
		d.ReadSeekCloser = &stalled{File: file, begun: l.stall, until: ctx.Done()}
	}
	return d, err
}

// stalled is a file whose third Read blocks until the caller has gone.
type stalled struct {
	*os.File
	begun chan struct{}
	until <-chan struct{}
	reads int
}

func (s *stalled) Read(p []byte) (int, error) {
	if s.reads++; s.reads == 3 {
		close(s.begun)
		<-s.until
	}
	return s.File.Read(p)
}

func (l *lab) Stat(_ context.Context, _, path string) (sandbox.Entry, error) {
	info, err := os.Stat(l.file(path))
	if err != nil {
		return sandbox.Entry{}, cerrdefs.ErrNotFound
	}
	return entry(info), nil
}

func (l *lab) ListDir(_ context.Context, _, path string) (sandbox.Listing, error) {
	entries, err := os.ReadDir(l.file(path))
	list := sandbox.Listing{Path: path}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return list, err
		}
		list.Entries = append(list.Entries, entry(info))
	}
	return list, err
}

func entry(info os.FileInfo) sandbox.Entry {
	kind := "file"
	if info.IsDir() {
		kind = "directory"
	}
	return sandbox.Entry{Name: info.Name(), Type: kind, Size: info.Size(), Mode: uint32(info.Mode().Perm()), ModTime: info.ModTime()}
}

// anyone is an authenticator that admits everybody, to act for everyone.
func anyone(*http.Request) (access.Caller, error) {
	return access.Caller{Name: "test", Users: sandbox.Everyone()}, nil
}
