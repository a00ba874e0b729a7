package api

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/dockerd"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// newHouse makes the real service over temporary folders, without an engine: commands do nothing and exit
// with 0, and processes run without doing anything.
func newHouse(t testing.TB) *sandbox.Service {
	t.Helper()
	dir := t.TempDir()
	registry, err := sandbox.OpenRegistry(filepath.Join(dir, "sandboxes"), nil, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	if uid == 0 { // whose homes are refused
		uid, gid = 1000, 1000
	}
	users := filepath.Join(dir, "users")
	service := sandbox.New(sandbox.Config{
		UsersDir: users, AllowedMountRoots: []string{users}, HomeOwners: sandbox.Owners{UID: uid, GID: gid},
		DefaultTimeout: time.Minute, MaxTimeout: time.Minute, KillGrace: time.Second, MaxOutput: testMaxOutput,
		MaxDomains: 256, Decisions: decisions.New(100),
	}, registry, sandbox.NewPlatforms(sandbox.PlatformConfig{
		Settings: dockerexec.Platform{Runtime: "runsc", Limits: dockerexec.Limits{NanoCPUs: 1e9}},
		Find: func(context.Context) (images.Image, error) {
			return images.Image{ID: "sha256:aa", Env: []string{"PATH=/bin"}, Version: "1"}, nil
		},
		Forget: func() {},
		Outfit: func(context.Context, string) (*images.Outfit, error) {
			return images.NewOutfit("", images.Original{Passwd: fmt.Appendf(nil, "user:x:%d:1::/:/bin/sh\n", uid), Group: fmt.Appendf(nil, "user:x:%d:\n", gid)}), nil
		},
		Inspect: func(context.Context) (dockerd.Info, error) {
			return dockerd.Info{Version: "1", CPUs: 2, Runtimes: []string{"runsc"}, GVisor: []string{"runsc"}, DefaultRuntime: "runsc"}, nil
		},
		Log: zerolog.Nop(),
	}), idleExecutor{}, zerolog.Nop())
	ports := process.NewListeners(process.PortRange{First: 20_000, Last: 29_999}, zerolog.Nop())
	t.Cleanup(ports.Shutdown)
	processes, err := process.Open(process.Config{
		Dir: filepath.Join(dir, "processes"), Runner: &idleRunner{running: map[string]process.Instance{}},
		LogDir:  func(r process.Record) string { return filepath.Join(users, r.UserID, "processes", r.ID) },
		Discard: func(r process.Record) error { return os.RemoveAll(filepath.Join(users, r.UserID, "processes", r.ID)) },
		Clock:   process.SystemClock{}, BootID: "b", Ports: ports, Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := processes.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := processes.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	service.UseProcesses(processes)
	return service
}

// idleExecutor runs every command to its end at once.
type idleExecutor struct{}

func (idleExecutor) Run(_ context.Context, _ dockerexec.Spec, c dockerexec.Command, _ dockerexec.Output) (dockerexec.Result, error) {
	if c.Started != nil {
		c.Started()
	}
	return dockerexec.Result{}, nil
}

func (idleExecutor) Containers() []dockerexec.Container {
	return []dockerexec.Container{{Name: "daycare-sandbox-alices", User: "alice", Fingerprint: dockerexec.Spec{}.Fingerprint(), Runtime: "runsc", State: "idle"}}
}

func (idleExecutor) Tmp(context.Context, dockerexec.Spec, bool) (string, func(), error) {
	return "", nil, errors.New("no /tmp here")
}

// idleRunner keeps what it is told to run.
type idleRunner struct {
	mu      sync.Mutex
	running map[string]process.Instance // by container
}

func (r *idleRunner) Start(_ context.Context, p process.Record, _ map[string]string) (process.Instance, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := process.Instance{Process: p.ID, Container: fmt.Sprintf("c-%s-%d", p.ID, len(r.running)), Started: time.Now(), PID: 1, Running: true}
	r.running[i.Container] = i
	return i, nil
}

func (r *idleRunner) Instances(context.Context) ([]process.Instance, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []process.Instance
	for _, i := range r.running {
		list = append(list, i)
	}
	return list, nil
}

func (r *idleRunner) Stop(_ context.Context, i process.Instance, _ syscall.Signal, _ time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	i.Running = false
	r.running[i.Container] = i
	return nil
}

func (r *idleRunner) Remove(_ context.Context, i process.Instance) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, i.Container)
	return nil
}

func (r *idleRunner) Readiness(process.Record) process.Readiness {
	return process.Readiness{Message: "nobody listens", Since: time.Now()}
}

func (r *idleRunner) Dial(context.Context, process.Instance, int) (process.Conn, error) {
	return nil, errors.New("nobody listens")
}

func (r *idleRunner) Exit(context.Context, process.Instance) (process.Exit, error) {
	return process.Exit{Signal: syscall.SIGTERM, At: time.Now()}, nil
}
