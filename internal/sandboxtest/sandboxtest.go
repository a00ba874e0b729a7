// Package sandboxtest makes services for the tests of other packages: real ones over temporary folders, without
// Docker.
package sandboxtest

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
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// Options say what is different from a service whose commands do nothing and exit with 0, and whose processes run
// without doing anything.
type Options struct {
	// Dir holds the service's folders, the homes in users; a temporary one if it is empty.
	Dir string
	// Executor runs the commands, and Runner the processes.
	Executor sandbox.Executor
	Runner   process.Runner
	// Platform and Config may change what calls are decided by.
	Platform func(*sandbox.PlatformConfig)
	Config   func(*sandbox.Config)
}

// New returns a service that ends with the test.
func New(t testing.TB, o Options) *sandbox.Service {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	if o.Executor == nil {
		o.Executor = Executor{}
	}
	if o.Runner == nil {
		o.Runner = &Runner{}
	}
	registry, err := sandbox.OpenRegistry(filepath.Join(o.Dir, "sandboxes"), nil, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	if uid == 0 { // whose homes are refused
		uid, gid = 1000, 1000
	}
	platform := platform(uid, gid)
	if o.Platform != nil {
		o.Platform(&platform)
	}
	cfg := sandbox.Config{
		DefaultTimeout: time.Minute, MaxTimeout: time.Minute, MaxAttachedTimeout: time.Minute, KillGrace: time.Second, MaxOutput: 1000,
		MaxDomains: 256, Decisions: decisions.New(100),
	}
	if o.Config != nil {
		o.Config(&cfg)
	}
	users := filepath.Join(o.Dir, "users")
	planner := rootfs.NewPlanner(rootfs.Config{
		UsersDir: users, AllowedMountRoots: []string{users}, HomeOwners: rootfs.Owners{UID: uid, GID: gid},
	}, zerolog.Nop())
	resolver := sandbox.NewResolver(cfg, registry, planner, sandbox.NewPlatforms(platform), zerolog.Nop())
	service := sandbox.New(resolver, o.Executor, openProcesses(t, o, users))
	t.Cleanup(service.EndDetached)
	return service
}

func openProcesses(t testing.TB, o Options, users string) *process.Manager {
	t.Helper()
	ports := process.NewListeners(process.PortRange{First: 20_000, Last: 29_999}, zerolog.Nop())
	t.Cleanup(ports.Shutdown)
	dir := func(r process.Record) string { return filepath.Join(users, r.UserID, "processes", r.ID) }
	processes, err := process.Open(process.Config{
		Dir: filepath.Join(o.Dir, "processes"), Runner: o.Runner, LogDir: dir,
		Discard: func(r process.Record) error { return os.RemoveAll(dir(r)) },
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
	return processes
}

func platform(uid, gid uint32) sandbox.PlatformConfig {
	return sandbox.PlatformConfig{
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
	}
}

// Executor implements sandbox.Executor. A command calls RunFunc, or ends at once without it.
type Executor struct {
	RunFunc func(context.Context, dockerexec.Spec, dockerexec.Command, dockerexec.Output) (dockerexec.Result, error)
	List    []dockerexec.Container
}

// Run implements sandbox.Executor.
func (e Executor) Run(ctx context.Context, spec dockerexec.Spec, c dockerexec.Command, out dockerexec.Output) (dockerexec.Result, error) {
	if e.RunFunc != nil {
		return e.RunFunc(ctx, spec, c, out)
	}
	if c.Started != nil {
		c.Started()
	}
	return dockerexec.Result{}, nil
}

// Containers implements sandbox.Executor.
func (e Executor) Containers() []dockerexec.Container { return e.List }

// Tmp implements sandbox.Executor.
func (e Executor) Tmp(context.Context, dockerexec.Spec, bool) (string, func(), error) {
	return "", nil, errors.New("no /tmp here")
}

// Runner implements process.Runner: it keeps what it is told to run.
type Runner struct {
	mu      sync.Mutex
	running map[string]process.Instance // by container
}

// Start implements process.Runner.
func (r *Runner) Start(_ context.Context, p process.Record, _ map[string]string) (process.Instance, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running == nil {
		r.running = map[string]process.Instance{}
	}
	i := process.Instance{Process: p.ID, Container: fmt.Sprintf("c-%s-%d", p.ID, len(r.running)), Started: time.Now(), PID: 1, Running: true}
	r.running[i.Container] = i
	return i, nil
}

// Instances implements process.Runner.
func (r *Runner) Instances(context.Context) ([]process.Instance, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []process.Instance
	for _, i := range r.running {
		list = append(list, i)
	}
	return list, nil
}

// Stop implements process.Runner.
func (r *Runner) Stop(_ context.Context, i process.Instance, _ syscall.Signal, _ time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	i.Running = false
	r.running[i.Container] = i
	return nil
}

// Remove implements process.Runner.
func (r *Runner) Remove(_ context.Context, i process.Instance) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, i.Container)
	return nil
}

// Readiness implements process.Runner.
func (r *Runner) Readiness(process.Record) process.Readiness {
	return process.Readiness{Message: "nobody listens", Since: time.Now()}
}

// Dial implements process.Runner.
func (r *Runner) Dial(context.Context, process.Instance, int) (process.Conn, error) {
	return nil, errors.New("nobody listens")
}

// Exit implements process.Runner.
func (r *Runner) Exit(context.Context, process.Instance) (process.Exit, error) {
	return process.Exit{Signal: syscall.SIGTERM, At: time.Now()}, nil
}
