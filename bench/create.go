package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/cgroup"
)

// creation has the times of a new user's sandbox and its first `true`, by the way in which users
// come.
type creation struct {
	// one after the other, one every spacing, and all at once.
	one, spaced, burst sample
	// dockerOne and dockerBurst are docker run --rm of the same image.
	dockerOne, dockerBurst sample
	// pooled and pooledBurst are users for whom a container waits.
	pooled, pooledBurst sample
	// alone are first calls for which no pool has containers, without a pool; refilling are such
	// calls while a pool is filled.
	alone, refilling sample
	// frozen are first calls of users whose container is frozen; frozenShell are those of a shell's
	// command.
	frozen, frozenShell sample
	// frozenTime is the processor time of a hundred frozen containers in a minute; empty if it was
	// not measured.
	frozenTime sample
	// missed says why some of them were not measured.
	missed []string
}

const (
	// spacing is the time between users who do not wait for those before them.
	spacing = 200 * time.Millisecond
	// waiting is the size of the pool, where there is one, and how many of its users come at once.
	waiting = 20
	// readyLimit bounds the wait for containers to be ready, or frozen.
	readyLimit = time.Minute
)

// measureCreation needs a service without a pool.
func (s *service) measureCreation(ctx context.Context, c *creation) error {
	t, err := s.twin(ctx, "true")
	if err != nil {
		return err
	}
	n := s.settings.users
	for _, shape := range []struct {
		name  string
		into  *sample
		space time.Duration
	}{{"one", &c.one, -1}, {"spaced", &c.spaced, spacing}, {"burst", &c.burst, 0}} {
		one := func(i int) (time.Duration, error) { return s.newUser(ctx, fmt.Sprintf("%s-%d", shape.name, i)) }
		if err := come(ctx, n, shape.space, one, shape.into); err != nil {
			return err
		}
		if err := s.dropUsers(ctx); err != nil {
			return err
		}
	}
	run := func(int) (time.Duration, error) { return s.dockerRun(ctx, t, true) }
	if err := come(ctx, min(n, waiting), -1, run, &c.dockerOne); err != nil {
		return err
	}
	return come(ctx, min(n, waiting), 0, run, &c.dockerBurst)
}

// come runs one n times, space apart. If space is below 0, each run waits for the one before.
func come(ctx context.Context, n int, space time.Duration, one func(int) (time.Duration, error), into *sample) error {
	var mu sync.Mutex
	var all errgroup.Group
	if space < 0 {
		all.SetLimit(1)
	}
	begun := time.Now()
	for i := range n {
		if space > 0 {
			select {
			case <-time.After(time.Until(begun.Add(time.Duration(i) * space))):
			case <-ctx.Done():
				return errors.Join(ctx.Err(), all.Wait())
			}
		}
		all.Go(func() error {
			took, err := one(i)
			mu.Lock()
			defer mu.Unlock()
			return into.add(took, err)
		})
	}
	return all.Wait()
}

// newUser registers a sandbox for a user who has never been seen, and runs `true` in it.
func (s *service) newUser(ctx context.Context, user string) (time.Duration, error) {
	begun := time.Now()
	if err := s.register(ctx, user); err != nil {
		return 0, err
	}
	_, err := s.exec(ctx, user, "true")
	return time.Since(begun), err
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

// measureCreations uses a new service for each measurement. A failure is noted: the service may be
// older than pools or frozen containers.
func (l *lab) measureCreations(ctx context.Context, found *runtimeFindings) error {
	c := &found.creation
	var without []string
	for _, kind := range []struct {
		name     string
		settings func() []string
		run      func(*service) error
	}{
		{"create-pool", func() []string { return poolSettings }, func(s *service) error { return s.measurePooled(ctx, c) }},
		{"create-frozen", func() []string { return append(frozenSettings, without...) }, func(s *service) error { return s.measureFrozen(ctx, c) }},
		{"create-refill", func() []string { return nil }, func(s *service) error { return s.measureRefilling(ctx, c) }},
		{"create", func() []string { return without }, func(s *service) error { return s.measureCreation(ctx, c) }},
	} {
		err := l.withService(ctx, found.runtime, kind.name, kind.settings(), kind.run)
		if kind.name == "create-pool" && (err == nil || !strings.Contains(err.Error(), "SANDBOXD_POOL_SIZE")) {
			without = []string{"SANDBOXD_POOL_SIZE=0"}
		}
		switch {
		case err == nil:
		case ctx.Err() != nil || errors.Is(err, errLeft) || kind.name == "create":
			return err
		default:
			l.say("FAILED: %v", err)
			c.missed = append(c.missed, fmt.Sprintf("%s: %v", kind.name, err))
		}
	}
	return nil
}

// poolSettings are the settings of a service in which containers wait for new users.
var poolSettings = []string{fmt.Sprintf("SANDBOXD_POOL_SIZE=%d", waiting), fmt.Sprintf("SANDBOXD_POOL_MAX=%d", waiting)}

// measurePooled needs a service with a pool of that size.
func (s *service) measurePooled(ctx context.Context, c *creation) error {
	if _, err := s.newUser(ctx, "first"); err != nil { // so that the service knows which calls come
		return err
	}
	full := func() (bool, error) { n, err := s.pooled(ctx); return n >= waiting, err }
	n := min(s.settings.users, waiting)
	for round := range 2 {
		if err := s.await(ctx, "a full pool", full); err != nil {
			return err
		}
		into, space := &c.pooled, time.Duration(-1)
		if round == 1 {
			into, space = &c.pooledBurst, 0
		}
		err := come(ctx, n, space, func(i int) (time.Duration, error) { return s.newUser(ctx, fmt.Sprintf("pooled-%d-%d", round, i)) }, into)
		if err != nil {
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

// frozenSettings are the settings of a service that soon freezes containers.
var frozenSettings = []string{"SANDBOXD_IDLE_FREEZE_AFTER=1s"}

// measureFrozen needs a service that freezes idle containers.
func (s *service) measureFrozen(ctx context.Context, c *creation) error {
	for _, way := range []struct {
		user string
		call types.Exec
		into *sample
	}{{"frozen", types.Exec{Argv: []string{"true"}}, &c.frozen}, {"frozen-shell", types.Exec{Command: "true"}, &c.frozenShell}} {
		if err := s.measureFrozenUsers(ctx, way.user, way.call, way.into); err != nil {
			return err
		}
	}
	return s.measureFrozenTime(ctx, c)
}

// frozenFor is how long frozen containers' time is counted: Go's collector runs every two minutes
// by itself.
const frozenFor = 2 * time.Minute

// measureFrozenTime counts from the moment when all users' containers are frozen.
func (s *service) measureFrozenTime(ctx context.Context, c *creation) error {
	frozen, err := s.awaitFrozen(ctx, 1)
	if err != nil {
		return err
	}
	spent := func() (sum time.Duration, err error) {
		for _, one := range frozen {
			found, err := s.docker.ContainerInspect(ctx, one.Name)
			if err != nil {
				return 0, err
			}
			usage, err := cgroup.ThisHost().Usage(found.ID)
			if err != nil {
				return 0, err
			}
			sum += usage.CPU
		}
		return sum, nil
	}
	before, err := spent()
	if err != nil {
		return err
	}
	select {
	case <-time.After(frozenFor):
	case <-ctx.Done():
		return ctx.Err()
	}
	after, err := spent()
	c.frozenTime = sample{(after - before) * 100 / time.Duration(len(frozen)) * time.Minute / frozenFor}
	return err
}

// awaitFrozen waits until at least n containers exist and all but the warm one are frozen.
func (s *service) awaitFrozen(ctx context.Context, n int) (frozen []types.Container, err error) {
	return frozen, s.await(ctx, "frozen containers", func() (bool, error) {
		list, err := s.api.Containers(ctx)
		frozen = slices.DeleteFunc(slices.Clone(list), func(c types.Container) bool { return c.State != "frozen" || c.UserID == boxID })
		return len(frozen) >= n && len(frozen) == len(list)-1, err
	})
}

// measureFrozenUsers makes calls of users, and calls again when their containers are frozen.
func (s *service) measureFrozenUsers(ctx context.Context, user string, call types.Exec, into *sample) error {
	n := max(s.settings.users/5, 2)
	name := func(i int) string { return fmt.Sprintf("%s-%d", user, i) }
	for i := range n {
		if err := s.register(ctx, name(i)); err != nil {
			return err
		}
		if _, err := s.call(ctx, name(i), call); err != nil {
			return err
		}
	}
	if _, err := s.awaitFrozen(ctx, n); err != nil {
		return err
	}
	return come(ctx, n, -1, func(i int) (time.Duration, error) {
		begun := time.Now()
		out, err := s.call(ctx, name(i), call)
		if out.Cold {
			err = errors.New("a frozen container was recreated")
		}
		return time.Since(begun), err
	}, into)
}

// await polls until the condition holds.
func (s *service) await(ctx context.Context, what string, is func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	for {
		if ok, err := is(); ok || err != nil {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w", what, ctx.Err())
		}
	}
}
