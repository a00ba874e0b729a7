package sandbox

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/dockerd"
	"github.com/daycare-run/sandbox/internal/quota"
)

// fakeExecutor runs what a test says. One without run fails the test that starts anything.
type fakeExecutor struct {
	t   testing.TB
	run func(dockerexec.Spec, dockerexec.Command, dockerexec.Output) (dockerexec.Result, error)
	// runIn is run for who looks at the call's context.
	runIn func(context.Context, dockerexec.Spec, dockerexec.Command) (dockerexec.Result, error)
}

func (f *fakeExecutor) Run(ctx context.Context, spec dockerexec.Spec, c dockerexec.Command, out dockerexec.Output) (dockerexec.Result, error) {
	if f.runIn != nil {
		return f.runIn(ctx, spec, c)
	}
	if f.run == nil {
		f.t.Errorf("started %+v", c)
		return dockerexec.Result{}, nil
	}
	return f.run(spec, c, out)
}

func (f *fakeExecutor) Tmp(context.Context, dockerexec.Spec, bool) (string, func(), error) {
	return "", nil, errors.New("no /tmp here")
}

func (f *fakeExecutor) Containers() []dockerexec.Container { return nil }

// fakePlatform is an engine with runsc and an image.
func fakePlatform() PlatformConfig {
	return PlatformConfig{
		Settings: dockerexec.Platform{Runtime: "runsc", Limits: dockerexec.Limits{NanoCPUs: 4e9}},
		Find: func(context.Context) (images.Image, error) {
			return images.Image{ID: "sha256:aa", Env: []string{"PATH=/bin", "HOME=/root"}, Version: "1"}, nil
		},
		Forget: func() {},
		Outfit: func(context.Context, string) (*images.Outfit, error) {
			return images.NewOutfit("", images.Original{Passwd: []byte(fmt.Sprintf("user:x:%d:1::/:/bin/sh\n", testUID)), Group: []byte(fmt.Sprintf("user:x:%d:\n", testGID))}), nil
		},
		Inspect: func(context.Context) (dockerd.Info, error) {
			return dockerd.Info{Version: "20.10.24", CPUs: 2, Runtimes: []string{"runc", "runsc"}, GVisor: []string{"runsc"}, DefaultRuntime: "runc"}, nil
		},
		Log: zerolog.Nop(),
	}
}

// The owner of a home that the service makes in these tests.
const testUID, testGID = 4321, 1234

// newService makes a Service over temporary folders, with sandbox "agent" of alice in workingDir. Its
// limits are those of config's defaults.
func newService(t testing.TB, executor *fakeExecutor, workingDir string) *Service {
	t.Helper()
	if executor == nil {
		executor = &fakeExecutor{}
	}
	executor.t = t
	root := t.TempDir()
	s := New(Config{
		UsersDir: filepath.Join(root, "users"), HomeOwners: Owners{UID: testUID, GID: testGID},
		DefaultTimeout: 30 * time.Second, MaxTimeout: 300 * time.Second, MaxAttachedTimeout: 8 * time.Hour, KillGrace: 2 * time.Second, MaxOutput: 1000,
		Quotas: quota.New(quota.Limits{PerUser: quota.Bounds{Commands: 2}}),
	}, open(t, filepath.Join(root, "sandboxes")), NewPlatforms(fakePlatform()), executor, zerolog.Nop())
	if _, _, err := s.Put("agent", Registration{UserID: "alice", WorkingDir: workingDir}); err != nil {
		t.Fatal(err)
	}
	return s
}

func user(t *testing.T, name string) UserID {
	t.Helper()
	u, err := ParseUserID(name)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
