package sandbox

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/internal/warm"
)

// fakePool is a poolRunner that renames homes, and nothing else.
type fakePool struct {
	planner *rootfs.Planner
	waits   map[string][]dockerexec.Spec
	bound   map[string]string          // the home's former user, by user
	specs   map[string]dockerexec.Spec // of all that waited, by the user
	trimmed map[string]int
	made    int
	takes   time.Duration // Stock
	err     error         // of Stock
	broken  string        // a class of which Stock makes none
	unbound error         // of Bind
	before  func()        // called by Bind before it looks at what waits; nil is nothing
	mu      sync.Mutex    // held by Stock while it changes any of these
}

func (f *fakePool) Stock(_ context.Context, class string, plan func(user string) (dockerexec.Spec, error)) error {
	f.mu.Lock()
	f.made++
	user := dockerexec.PoolUser(fmt.Sprint("test-", f.made))
	f.mu.Unlock()
	spec, err := plan(user)
	if err != nil {
		return err
	}
	time.Sleep(f.takes)
	f.mu.Lock()
	defer f.mu.Unlock()
	if class == f.broken {
		return errors.New("cannot make it")
	}
	if f.err == nil {
		f.waits[class] = append(f.waits[class], spec)
		f.specs[spec.User] = spec
	}
	return f.err
}

func (f *fakePool) Stocked() (all map[string]int, ready int) {
	all = map[string]int{}
	for class, list := range f.waits {
		all[class] = len(list)
		ready += len(list)
	}
	return all, ready
}

func (f *fakePool) Trim(most map[string]int) {
	f.trimmed = most
	for class, list := range f.waits {
		f.waits[class] = list[:min(len(list), most[class])]
	}
}

func (f *fakePool) Bind(_ context.Context, class string, leave int, a quota.Account, _ dockerexec.Egress) error {
	if f.before != nil {
		f.before()
	}
	list := f.waits[class]
	if len(list) <= leave {
		return warm.ErrNotStocked
	}
	f.waits[class] = list[1:]
	if f.unbound != nil {
		return f.unbound
	}
	f.bound[a.User] = list[0].User
	return f.planner.GiveHome(list[0].User, a.User)
}

func newPool(t *testing.T, size, most int) (*Service, *Pool, *fakePool) {
	t.Helper()
	root := t.TempDir()
	planner := newPlanner(t, rootfs.Config{UsersDir: filepath.Join(root, "users")})
	planner.Use(plan.Config{Egress: policy.EgressRules{AllowGlobalWildcard: true}, MaxDomains: 10})
	cfg := testConfig()
	cfg.Decisions = decisions.New(100)
	fake := &fakePool{planner: planner.Files(), waits: map[string][]dockerexec.Spec{}, specs: map[string]dockerexec.Spec{}, bound: map[string]string{}}
	pool := OpenPool(filepath.Join(root, "pool", "classes.json"), PoolConfig{Size: size, Max: most, Persistent: []plan.Persistent{{}, {CPUs: 0.5}, {Root: true}, {Image: "theirs"}}}, planner, fake, cfg.Quotas, nil, zerolog.Nop())
	executor := &fakeExecutor{t: t, run: func(dockerexec.Spec, warm.Command, session.Output) (warm.Result, error) {
		return warm.Result{}, nil
	}}
	return New(cfg, Parts{Planner: planner, Runner: executor, Executor: executor, Processes: openProcesses(t, root), Pool: pool, Trash: hostfs.NewTrash(func(dir string, err error) { t.Error(dir, err) })}), pool, fake
}

// first is a user's first call.
func first(t *testing.T, s *Service, user string, box Registration, r Request) error {
	t.Helper()
	box.UserID = user
	if _, _, err := s.Put(user, box); err != nil {
		t.Fatal(err)
	}
	r.Command = "true"
	_, err := s.Exec(t.Context(), user, r, func(session.Stream, []byte) error { return nil })
	return err
}

// planPersistent plans the container of a persistent sandbox, as package persistent does for a new one.
func planPersistent(t *testing.T, s *Service, id string, l plan.Persistent) (dockerexec.Spec, error) {
	t.Helper()
	box, err := s.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	decided, err := s.planner.DecidePersistent(box, l)
	if err != nil {
		return dockerexec.Spec{}, err
	}
	s.pool.BindPersistent(t.Context(), decided, l.Shape(), s.token)
	made, err := s.planner.PlanPersistent(t.Context(), decided, id, l.Shape())
	return made.Spec, err
}
