// Package plantest makes planners for the tests of other packages, without Docker.
package plantest

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/registry"
	"github.com/daycare-run/sandbox/internal/rootfs"
)

// UID and GID own the homes that these planners make.
const UID, GID = 4321, 1234

// Platform is a Docker with runsc and an image.
func Platform(t testing.TB) plan.PlatformConfig {
	return plan.PlatformConfig{
		Settings: dockerexec.Platform{Runtime: "runsc", Limits: dockerexec.Limits{NanoCPUs: 4e9}},
		Find: func(context.Context) (images.Image, error) {
			return images.Image{ID: "sha256:aa", Env: []string{"PATH=/bin", "HOME=/root"},
				Version: "1"}, nil
		},
		Forget: func() {},
		Overrides: func(context.Context, string) (*images.Overrides, error) {
			return images.NewOverrides(t.TempDir(), images.Original{
				Passwd: fmt.Appendf(nil, "user:x:%d:1::/:/bin/sh\n", UID),
				Group:  fmt.Appendf(nil, "user:x:%d:\n", GID),
			}), nil
		},
		Inspect: func(context.Context) (engine.Info, error) {
			return engine.Info{
				Version: "20.10.24", CPUs: 2, Runtimes: []string{"runc", "runsc"},
				GVisor: []string{"runsc"}, DefaultRuntime: "runc",
			}, nil
		},
		Log: zerolog.Nop(),
	}
}

// New makes a planner for homes as files says, with the records of its sandboxes beside them.
func New(t testing.TB, files rootfs.Config, platforms *plan.Platforms,
	quotas *quota.Ledger) *plan.Planner {
	t.Helper()
	files.HomeOwners = rootfs.Owners{UID: UID, GID: GID}
	sandboxes, err := registry.Open(filepath.Join(filepath.Dir(files.UsersDir), "sandboxes"),
		quotas, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	return plan.NewPlanner(sandboxes, plan.Config{}, rootfs.NewPlanner(files, zerolog.Nop()),
		platforms, zerolog.Nop())
}
