// Package sandboxtest makes services for the tests of other packages: real services over temporary
// folders, without Docker.
package sandboxtest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/registry"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// Options say what is different from a service whose commands do nothing and exit with 0, and whose
// processes run without doing anything.
type Options struct {
	// Dir holds the service's folders, the homes in users; a temporary one if it is empty.
	Dir string
	// Executor runs the commands, and Runner the processes.
	Executor interface {
		sandbox.Runner
		sandbox.Executor
	}
	Runner *Runner
	// Processes are those that an earlier service has left. Where they say so, they still run.
	Processes []process.Record
	// Persistent opens the persistent sandboxes with what the service has; nil for none.
	Persistent func(persistent.Config) *persistent.Sandboxes
	// Platform, Plan and Config may change what decides about calls.
	Platform func(*plan.PlatformConfig)
	Plan     func(*plan.Config)
	Config   func(*sandbox.Config)
}

// usersDir holds the users' folders, below Options.Dir.
const usersDir = "users"

// Home is where a user's home is, in a service that has this Options.Dir.
func Home(dir, user string) string { return filepath.Join(dir, usersDir, user, "home") }

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
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	if uid == 0 { // root's homes are refused
		uid, gid = 1000, 1000
	}
	platform := platform(uid, gid)
	if o.Platform != nil {
		o.Platform(&platform)
	}
	cfg := sandbox.Config{
		MaxImage:       files.ImageBounds{Bytes: 5_000_000, Pixels: 8000},
		DefaultTimeout: time.Minute, MaxTimeout: time.Minute, MaxAttachedTimeout: time.Minute,
		KillGrace: time.Second, Decisions: decisions.New(10_000),
		Events: events.New(events.Log(zerolog.Nop())),
	}
	if o.Config != nil {
		o.Config(&cfg)
	}
	users := filepath.Join(o.Dir, usersDir)
	files := rootfs.NewPlanner(rootfs.Config{
		UsersDir: users, AllowedMountRoots: []string{users},
		HomeOwners: rootfs.Owners{UID: uid, GID: gid},
	}, zerolog.Nop())
	sandboxes, err := registry.Open(filepath.Join(o.Dir, "sandboxes"), cfg.Quotas, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	rules := plan.Config{MaxDomains: 256, Egress: policy.EgressRules{AllowGlobalWildcard: true}}
	if o.Plan != nil {
		o.Plan(&rules)
	}
	planner := plan.NewPlanner(sandboxes, rules, files, plan.NewPlatforms(platform), zerolog.Nop())
	parts := sandbox.Parts{
		Planner: planner, Runner: o.Executor, Executor: o.Executor,
		Processes: openProcesses(t, o, users, cfg.Quotas),
		Trash:     hostfs.NewTrash(func(string, error) {}),
	}
	if o.Persistent != nil {
		parts.Persistent = o.Persistent(persistent.Config{
			Dir: filepath.Join(o.Dir, "lasting"), Planner: planner, Processes: parts.Processes,
			Places: places{cfg.Quotas}, Quotas: cfg.Quotas, Events: cfg.Events,
			Trash: parts.Trash, Log: zerolog.Nop(),
		})
	}
	service := sandbox.New(cfg, parts)
	t.Cleanup(service.EndDetached)
	return service
}

// places are those of containers of which none is idle.
type places struct{ *quota.Ledger }

// TakePlace implements persistent.Places.
func (p places) TakePlace(_ context.Context, a quota.Account) (give func(), err error) {
	return p.Take(a, quota.Containers, 1)
}

func openProcesses(t testing.TB, o Options, users string, quotas *quota.Ledger) *process.Manager {
	t.Helper()
	ports := process.NewListeners(process.PortRange{First: 20_000, Last: 29_999}, zerolog.Nop())
	t.Cleanup(ports.Shutdown)
	o.Runner.users = users
	for _, r := range o.Processes {
		if r.Status == process.Running {
			r.Instance, r.BootID = o.Runner.adopt(r), bootID
		}
		record(t, filepath.Join(o.Dir, "processes", r.ID), r)
		if err := os.MkdirAll(o.Runner.Dir(r), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	processes, err := process.Open(process.Config{
		Dir: filepath.Join(o.Dir, "processes"), Runner: o.Runner,
		Clock: process.SystemClock{}, BootID: bootID, Ports: ports, Quotas: quotas,
		Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	o.Runner.ended = processes.Ended
	t.Cleanup(func() {
		if err := processes.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	processes.Lost()
	return processes
}

const bootID = "b"

// record writes a process's record as a service does.
func record(t testing.TB, dir string, r process.Record) {
	t.Helper()
	text, err := json.Marshal(struct {
		Version int `json:"version"`
		process.Record
	}{1, r})
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "record.json"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func platform(uid, gid uint32) plan.PlatformConfig {
	return plan.PlatformConfig{
		Settings: dockerexec.Platform{Runtime: "runsc", Limits: dockerexec.Limits{NanoCPUs: 1e9}},
		Find: func(context.Context) (images.Image, error) {
			return images.Image{ID: "sha256:aa", Env: []string{"PATH=/bin"}, Version: "1"}, nil
		},
		Forget: func() {},
		Overrides: func(context.Context, string) (*images.Overrides, error) {
			return images.NewOverrides("",
				images.Original{Passwd: fmt.Appendf(nil, "user:x:%d:1::/:/bin/sh\n", uid),
					Group: fmt.Appendf(nil, "user:x:%d:\n", gid)}), nil
		},
		Inspect: func(context.Context) (engine.Info, error) {
			return engine.Info{Version: "1", CPUs: 2, Runtimes: []string{"runsc"},
				GVisor: []string{"runsc"}, DefaultRuntime: "runsc"}, nil
		},
		Log: zerolog.Nop(),
	}
}
