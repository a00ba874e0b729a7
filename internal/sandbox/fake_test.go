package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/plantest"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/internal/warm"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// fakeExecutor runs what a test says. One without run fails the test that starts anything.
type fakeExecutor struct {
	t   testing.TB
	run func(dockerexec.Spec, warm.Command, session.Output) (warm.Result, error)
	// runIn is run for who looks at the call's context, or prepares the command.
	runIn func(context.Context, dockerexec.Spec, warm.Command) (warm.Result, error)
	// leave is called by Leave, unless nil.
	leave func(context.Context, string) error
	// warmed are the Specs that Warm was told. With later, that gets what makes them instead.
	warmed []dockerexec.Spec
	later  func(plan func(context.Context, func(dockerexec.Spec)) error)
	// tmpFor are the tokens on behalf of which a /tmp was asked for.
	tmpFor []quota.Token
	// held is a file that containers have mounted.
	held dockerexec.FileID
	// removed are the paths that Removed was told, on the host and inside.
	removed []string
	// changed and renamed are what Changed and RenameInside were told.
	changed, renamed []string
	// tmp is where a user's /tmp is; empty for nowhere.
	tmp string
	// tmpHeld is how many hold it.
	tmpHeld int
}

func (f *fakeExecutor) Run(ctx context.Context, spec dockerexec.Spec, c warm.Command, out session.Output) (warm.Result, error) {
	if f.runIn != nil {
		return f.runIn(ctx, spec, c)
	}
	if c.Prepare != nil {
		done, err := c.Prepare(ctx, nil)
		if err != nil {
			return warm.Result{}, err
		}
		defer done()
	}
	if f.run == nil {
		f.t.Errorf("started %+v", c)
		return warm.Result{}, nil
	}
	return f.run(spec, c, out)
}

func (f *fakeExecutor) Tmp(_ context.Context, _ dockerexec.Spec, token quota.Token, _ bool) (string, func(), error) {
	f.tmpFor = append(f.tmpFor, token)
	if f.tmp != "" {
		f.tmpHeld++
		return f.tmp, func() { f.tmpHeld-- }, nil
	}
	return "", nil, errors.New("no /tmp here")
}

func (f *fakeExecutor) Warm(user string, _ quota.Token, plan func(context.Context, func(dockerexec.Spec)) error) {
	if f.later != nil {
		f.later(plan)
		return
	}
	err := plan(f.t.Context(), func(spec dockerexec.Spec) {
		if spec.User != user {
			f.t.Errorf("a container for %q: %+v", user, spec)
		}
		f.warmed = append(f.warmed, spec)
	})
	if err != nil {
		f.t.Error(err)
	}
}

func (f *fakeExecutor) Changed(_, _, inside string, change dockerexec.Change) {
	f.changed = append(f.changed, fmt.Sprintf("%s %s", inside, change))
}

func (f *fakeExecutor) RenameInside(_ context.Context, _, _, inside, temp string) bool {
	f.renamed = append(f.renamed, temp[:len(".daycare-")]+" to "+inside)
	return false
}

func (f *fakeExecutor) Removed(user, host, inside string) {
	f.removed = append(f.removed, user+" "+host+" "+inside)
}

func (f *fakeExecutor) FreezeIdle(string) {}

func (f *fakeExecutor) Leave(ctx context.Context, user string) error {
	if f.leave == nil {
		return nil
	}
	return f.leave(ctx, user)
}

func (f *fakeExecutor) HoldsFile(_ string, id dockerexec.FileID) bool {
	return f.held.Same(id) && f.held != dockerexec.FileID{}
}

func (f *fakeExecutor) Usages(context.Context) map[string]cgroup.Usage { return nil }

func (f *fakeExecutor) Containers() []dockerexec.Summary { return nil }

func (f *fakeExecutor) Pooled() []dockerexec.Summary { return nil }

// The owner of a home that the service makes in these tests.
const testUID, testGID = plantest.UID, plantest.GID

// newService makes a Service over temporary folders, with sandbox "agent" of alice in workingDir. Its
// limits are those of config's defaults.
func newService(t testing.TB, executor *fakeExecutor, workingDir string) *Service {
	t.Helper()
	return newServiceOn(t, plantest.Platform(t), executor, workingDir)
}

// newServiceOn is newService on a platform.
func newServiceOn(t testing.TB, platform plan.PlatformConfig, executor *fakeExecutor, workingDir string) *Service {
	t.Helper()
	if executor == nil {
		executor = &fakeExecutor{}
	}
	executor.t = t
	root := t.TempDir()
	s := New(testConfig(), Parts{
		Planner: plantest.New(t, rootfs.Config{UsersDir: filepath.Join(root, "users")}, plan.NewPlatforms(platform), nil),
		Runner:  executor, Executor: executor, Processes: openProcesses(t, root), Trash: hostfs.NewTrash(func(dir string, err error) { t.Error(dir, err) }),
	})
	if _, _, err := s.Put("agent", Registration{UserID: "alice", WorkingDir: workingDir}); err != nil {
		t.Fatal(err)
	}
	return s
}

func testConfig() Config {
	return Config{
		DefaultTimeout: 30 * time.Second, MaxTimeout: 300 * time.Second, MaxAttachedTimeout: 8 * time.Hour, KillGrace: 2 * time.Second,
		MaxImage: files.ImageBounds{Bytes: 5_000_000, Pixels: 8000}, Quotas: quota.New(quota.Limits{PerUser: quota.Bounds{Commands: 2}}),
	}
}

// newPlanner makes a planner for homes as cfg says.
func newPlanner(t testing.TB, cfg rootfs.Config) *plan.Planner {
	t.Helper()
	return plantest.New(t, cfg, plan.NewPlatforms(plantest.Platform(t)), nil)
}

// nobody starts processes here.
type nobody struct{ process.Runner }

func (nobody) DropUnread(string) error { return nil }

func (nobody) Instances(context.Context) ([]process.Instance, error) { return nil, nil }

// openProcesses has no processes, and none can be started.
func openProcesses(t testing.TB, root string) *process.Manager {
	t.Helper()
	return openProcessesOf(t, root, nobody{})
}

func openProcessesOf(t testing.TB, root string, runner process.Runner) *process.Manager {
	t.Helper()
	ports := process.NewListeners(process.PortRange{}, zerolog.Nop())
	t.Cleanup(ports.Shutdown)
	processes, err := process.Open(process.Config{
		Dir: filepath.Join(root, "processes"), Runner: runner,
		Clock: process.SystemClock{}, BootID: "b", Ports: ports, Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return processes
}

// planFor is the plan of a call to sandbox "agent".
func planFor(t testing.TB, s *Service, asked Confinement) plan.Plan {
	t.Helper()
	c, err := s.call("agent", asked)
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.plan(t.Context(), c, false)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// usersDir is where the homes are.
func (s *Service) usersDir() string { return s.planner.Files().UsersDir() }

// allowMounts lets further mounts be in roots.
func (s *Service) allowMounts(own []string, roots ...string) {
	s.planner.Files().Use(rootfs.Config{
		UsersDir: s.usersDir(), AllowedMountRoots: roots, OwnPlaces: own, HomeOwners: rootfs.Owners{UID: testUID, GID: testGID},
	})
}

func user(t *testing.T, name string) ids.User {
	t.Helper()
	u, err := ids.ParseUser(name)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func checkNoLeftovers(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if strings.Join(names, " ") != strings.Join(want, " ") {
		t.Errorf("in the user's folder: %q, want %q", names, want)
	}
}
