package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/api/types"
)

// creation has the times of a new user's sandbox and its first `true`, by the way in which users
// come.
type creation struct {
	// one comes after the other, and burst all at once.
	one, burst sample
	// dockerOne and dockerBurst are docker run --rm of the same image.
	dockerOne, dockerBurst sample
	// pooled and pooledBurst are users for whom a container waits.
	pooled, pooledBurst sample
	// pooledNode is pooled with `node -v` in place of `true`.
	pooledNode sample
	// alone are first calls for which no pool has containers, without a pool; refilling are such
	// calls while a pool is filled.
	alone, refilling sample
	// frozen are first calls of users whose container is frozen; frozenShell are those of a shell's
	// command.
	frozen, frozenShell sample
}

// waiting is the size of the pool, where there is one, and how many of its users come at once.
const waiting = 20

// poolSettings are the settings of a service in which containers wait for new users, and
// frozenSettings those of one that soon freezes containers.
var (
	poolSettings   = []string{fmt.Sprintf("SANDBOXD_POOL_SIZE=%d", waiting), fmt.Sprintf("SANDBOXD_POOL_MAX=%d", waiting)}
	frozenSettings = []string{"SANDBOXD_IDLE_FREEZE_AFTER=1s", "SANDBOXD_POOL_SIZE=0"}
)

// measureCreation needs a service without a pool.
func (s *service) measureCreation(ctx context.Context, c *creation) error {
	t, err := s.twin(ctx, "true")
	if err != nil {
		return err
	}
	run := func(int) (time.Duration, error) { return s.dockerRun(ctx, t) }
	n := s.settings.users
	for _, shape := range []struct {
		into   *sample
		n      int
		atOnce bool
		one    func(i int) (time.Duration, error)
	}{
		{&c.one, min(n, 2*waiting), false, func(i int) (time.Duration, error) { return s.newUser(ctx, fmt.Sprint("one-", i), "true") }},
		{&c.burst, n, true, func(i int) (time.Duration, error) { return s.newUser(ctx, fmt.Sprint("burst-", i), "true") }},
		{&c.dockerOne, min(n, waiting), false, run},
		{&c.dockerBurst, min(n, waiting), true, run},
	} {
		if err := errors.Join(come(shape.n, shape.atOnce, shape.one, shape.into), s.dropUsers(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// come runs one n times, all at once or one after the other.
func come(n int, atOnce bool, one func(i int) (time.Duration, error), into *sample) error {
	var mu sync.Mutex
	var all errgroup.Group
	if !atOnce {
		all.SetLimit(1)
	}
	for i := range n {
		all.Go(func() error {
			took, err := one(i)
			mu.Lock()
			defer mu.Unlock()
			return into.add(took, err)
		})
	}
	return all.Wait()
}

// newUser registers a sandbox for a user who has never been seen, and runs a program in it.
func (s *service) newUser(ctx context.Context, user string, argv ...string) (time.Duration, error) {
	return timed(func() error {
		if err := s.register(ctx, user); err != nil {
			return err
		}
		_, err := s.exec(ctx, user, argv...)
		return err
	})
}

// dropUsers removes all containers of the service but the warm one.
func (s *service) dropUsers(ctx context.Context) error {
	list, err := s.docker.ContainerList(ctx, container.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelInstance+"="+s.instance))})
	if err != nil {
		return err
	}
	var removing errgroup.Group
	removing.SetLimit(removedAtOnce)
	for _, c := range list {
		if c.ID != s.container {
			removing.Go(func() error { return s.remove(c.ID) })
		}
	}
	if err := removing.Wait(); err != nil {
		return err
	}
	return s.await(ctx, "containers that are removed", func() (bool, error) {
		left, err := s.api.Containers(ctx)
		return len(left) <= 1, err
	})
}

// measurePooled needs a service with a pool of that size.
func (s *service) measurePooled(ctx context.Context, c *creation) error {
	if _, err := s.newUser(ctx, "first", "true"); err != nil { // so that the service knows which calls come
		return err
	}
	for _, shape := range []struct {
		into   *sample
		name   string
		atOnce bool
		argv   []string
	}{
		{&c.pooled, "pooled", false, []string{"true"}},
		{&c.pooledBurst, "pooled-burst", true, []string{"true"}},
		{&c.pooledNode, "pooled-node", false, []string{"node", "-v"}},
	} {
		full := func() (bool, error) { n, err := s.pooled(ctx); return n >= waiting, err }
		if err := s.await(ctx, "a full pool", full); err != nil {
			return err
		}
		one := func(i int) (time.Duration, error) {
			return s.newUser(ctx, fmt.Sprintf("%s-%d", shape.name, i), shape.argv...)
		}
		if err := come(min(s.settings.users, waiting), shape.atOnce, one, shape.into); err != nil {
			return err
		}
	}
	return nil
}

// pooled returns how many containers wait for new users.
func (s *service) pooled(ctx context.Context) (n int, err error) {
	list, err := s.api.AllContainers(ctx)
	for _, c := range list.Pooled {
		if c.State == "pooled" {
			n++
		}
	}
	return n, err
}

// measureFrozen makes calls of users, and calls again when their containers are frozen. It needs a
// service that freezes idle containers.
func (s *service) measureFrozen(ctx context.Context, c *creation) error {
	n := max(s.settings.users/5, 2)
	for _, way := range []struct {
		user string
		call types.Exec
		into *sample
	}{{"frozen", types.Exec{Argv: []string{"true"}}, &c.frozen}, {"frozen-shell", types.Exec{Command: "true"}, &c.frozenShell}} {
		name := func(i int) string { return fmt.Sprintf("%s-%d", way.user, i) }
		for i := range n {
			if err := s.register(ctx, name(i)); err != nil {
				return err
			}
			if _, err := s.call(ctx, name(i), way.call); err != nil {
				return err
			}
		}
		if err := s.awaitFrozen(ctx, n); err != nil {
			return err
		}
		thaw := func(i int) (time.Duration, error) {
			return timed(func() error {
				out, err := s.call(ctx, name(i), way.call)
				if err == nil && out.Cold {
					err = errors.New("a frozen container was recreated")
				}
				return err
			})
		}
		if err := come(n, false, thaw, way.into); err != nil {
			return err
		}
	}
	return nil
}

// awaitFrozen waits until at least n containers exist and all but the warm one are frozen.
func (s *service) awaitFrozen(ctx context.Context, n int) error {
	return s.await(ctx, "frozen containers", func() (bool, error) {
		list, err := s.api.Containers(ctx)
		awake := func(c types.Container) bool { return c.State != "frozen" && c.UserID != boxID }
		return len(list) > n && !slices.ContainsFunc(list, awake), err
	})
}

// createTarget has the targets under one runtime. 0 means no target.
type createTarget struct {
	// pooled and pooledP99 are for users who come one after the other and find a container, and
	// pooledBurst is the median of those who come at once. frozen is for frozen containers.
	pooled, pooledP99, pooledBurst, frozen time.Duration
	// last is for the last of all users who come at once.
	last time.Duration
}

var createTargets = map[string]createTarget{
	"runc":  {pooled: 15 * time.Millisecond, pooledP99: 40 * time.Millisecond, frozen: 18 * time.Millisecond},
	"runsc": {pooled: 30 * time.Millisecond, pooledP99: 60 * time.Millisecond, pooledBurst: 150 * time.Millisecond, frozen: 25 * time.Millisecond, last: 21300 * time.Millisecond},
}

// These are the targets under every runtime: the median of a burst relative to its last, and a first
// call beside a refill relative to one without a pool.
const (
	burstOrderTarget = 0.6
	refillingTarget  = 1.05
)

func createSection(f findings) section {
	s := section{
		title: "Create and first command",
		how: fmt.Sprintf("The PUT of a sandbox and the first exec of `true` of a user who has never been seen, until the answer is decoded. %d\n"+
			"users come one after the other, and %d all at once; their containers stay until all have come. docker run is `docker run\n"+
			"--rm`, as in \"Cold exec\". A pool has %d containers that wait. A frozen user's container has been idle for\n"+
			"`idle.freezeAfter`. Other first calls have `denyRead`, for which no pool has containers. They come by turns without a\n"+
			"pool and at any moment of a pool's being filled.", min(f.settings.users, 2*waiting), f.settings.users, waiting),
		head: timesHead("runtime", "users"),
	}
	for _, r := range f.runtimes {
		c := r.creation
		s.times(c.one, r.runtime, "one after the other")
		s.times(c.burst, r.runtime, "all at once")
		s.times(c.dockerOne, r.runtime, "docker run, one after the other")
		s.times(c.dockerBurst, r.runtime, "docker run, at once")
		s.times(c.pooled, r.runtime, "one after the other, a pool")
		s.times(c.pooledBurst, r.runtime, "at once, a pool")
		s.times(c.pooledNode, r.runtime, "one after the other, a pool, `node -v`")
		s.times(c.frozen, r.runtime, "frozen, first `true`")
		s.times(c.frozenShell, r.runtime, "frozen, first shell `true`")
		s.times(c.alone, r.runtime, "another first call, no pool")
		s.times(c.refilling, r.runtime, "another first call, a pool that is refilled")
		target, last := createTargets[r.runtime], c.burst.percentile(100)
		for _, t := range []struct {
			what            string
			measured, limit time.Duration
		}{
			{"all at once: the last", last, target.last},
			{"a pool, one after the other: p50", c.pooled.median(), target.pooled},
			{"a pool, one after the other: p99", c.pooled.percentile(99), target.pooledP99},
			{"a pool, at once: p50", c.pooledBurst.median(), target.pooledBurst},
			{"frozen: p50 of the first `true`", c.frozen.median(), target.frozen},
			{"frozen: p50 of the first shell `true`", c.frozenShell.median(), target.frozen},
		} {
			if t.limit > 0 {
				s.judge(atMost(r.runtime, t.what, t.measured, t.limit, ms))
			}
		}
		s.judge(
			atMost(r.runtime, "all at once: median ÷ last", ratio(c.burst.median(), last), burstOrderTarget, times),
			atMost(r.runtime, "p50 of a cold start beside a refill ÷ without a pool", ratio(c.refilling.median(), c.alone.median()), refillingTarget, times))
	}
	return s
}
