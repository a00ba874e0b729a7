package sandbox

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/internal/workload/process"
	"github.com/daycare-run/sandbox/internal/workload/runner"
)

// begun starts processes, which then run.
type begun struct{ *dockerexec.Executor }

func (begun) StartProcess(_ context.Context, s dockerexec.Spec, _ quota.Token) (dockerexec.ProcessContainer, error) {
	return dockerexec.ProcessContainer{Process: s.Process.ID, ID: "c", Spec: s, Running: true, Started: time.Now()}, nil
}

// Policy decides once about a call, and its container is planned once, whatever is asked first and whatever starts it.
func TestACallIsDecidedOnceAndPlannedOnce(t *testing.T) {
	s, pool, _ := newPool(t, 1, 4)
	counts := func(what string, do func() error) {
		t.Helper()
		decisions, plans := s.planner.Counts()
		if err := do(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if d, p := s.planner.Counts(); d != decisions+1 || p != plans+1 {
			t.Errorf("%s: policy decided %d times, and %d containers were planned", what, d-decisions, p-plans)
		}
	}
	workspace := Confinement{Permissions: []string{"@workspace"}}
	exec := func(user string) func() error {
		return func() error { return first(t, s, user, Registration{}, Request{Confinement: workspace}) }
	}
	persistent := func(id string) func() error {
		return func() error {
			if _, _, err := s.Put(id, Registration{UserID: id}); err != nil {
				return err
			}
			_, err := planPersistent(t, s, id, plan.Persistent{NoNetwork: true})
			return err
		}
	}
	counts("a first call", exec("one"))
	counts("another call", exec("one"))
	counts("a persistent sandbox", persistent("box-1"))
	pool.fillNow(t)
	counts("a first call from the pool", exec("two"))
	counts("a persistent sandbox from the pool", persistent("box-2"))
	if got := pool.Stats(); got.Asked[poolHit] != 2 {
		t.Errorf("not from the pool: %+v", got)
	}

	root := t.TempDir()
	planner := newPlanner(t, rootfs.Config{UsersDir: filepath.Join(root, "users")})
	runner := runner.New(planner, begun{}, nil, hostfs.NewTrash(nil), 1<<20, zerolog.Nop())
	s = New(testConfig(), Parts{Planner: planner, Runner: &fakeExecutor{t: t}, Executor: &fakeExecutor{t: t}, Processes: openProcessesOf(t, root, runner)})
	if _, _, err := s.Put("agent", Registration{UserID: "alice"}); err != nil {
		t.Fatal(err)
	}
	counts("a process", func() error {
		_, _, err := s.StartProcess(t.Context(), "agent", process.Intent{Command: "true", Grants: workspace.Permissions}, nil)
		return err
	})
}
