package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/daycare-run/sandbox/api/types"
)

const (
	// refillRounds is how often first calls without a pool and first calls during a refill take
	// turns.
	refillRounds = 5
	// refillPhase is how long after a container has become ready a call of the latter may come:
	// until the next one is ready, including the rest before it is begun.
	refillPhase = 1300 * time.Millisecond
)

// measureRefilling needs a service whose pool is set by its settings file. No pool has containers
// for its first calls.
func (s *service) measureRefilling(ctx context.Context, c *creation) error {
	if _, err := s.newUser(ctx, "first", "true"); err != nil { // so that the service knows which calls come
		return err
	}
	each, users := max(s.settings.users/25, 1), 0
	another := func() (time.Duration, error) {
		users++
		return s.unlike(ctx, fmt.Sprint("unlike-", users))
	}
	return byTurns(refillRounds, 0,
		way{&c.alone, func() (sample, error) {
			if err := s.refill(ctx, 0); err != nil {
				return nil, err
			}
			return repeated(each, nil, another).row()
		}},
		way{&c.refilling, func() (sample, error) {
			if err := errors.Join(s.refill(ctx, 0), s.refill(ctx, 10*each)); err != nil {
				return nil, err
			}
			return repeated(each, nil, func() (time.Duration, error) {
				if err := s.amidRefill(ctx); err != nil {
					return 0, err
				}
				return another()
			}).row()
		}})
}

// refill sets the size of the pool. For size 0 it returns when the pool is gone.
func (s *service) refill(ctx context.Context, size int) error {
	text := fmt.Sprintf(`{"pool":{"size":%d,"max":%d}}`, size, max(size, 1))
	if err := errors.Join(os.WriteFile(s.path("settings.json"), []byte(text), 0o600), s.process.Process.Signal(syscall.SIGHUP)); err != nil || size > 0 {
		return err
	}
	own := filters.NewArgs(filters.Arg("label", labelInstance+"="+s.instance))
	return s.await(ctx, "a pool that is gone", func() (bool, error) {
		ready, err := s.pooled(ctx)
		if err != nil {
			return false, err
		}
		list, err := s.docker.ContainerList(ctx, container.ListOptions{All: true, Filters: own})
		if err != nil {
			return false, err
		}
		users, err := s.api.Containers(ctx)
		return ready == 0 && len(list) == len(users), err
	})
}

// amidRefill returns at a random moment while the pool is being filled.
func (s *service) amidRefill(ctx context.Context) error {
	last := -1
	err := s.await(ctx, "the pool to be filled", func() (bool, error) {
		n, err := s.pooled(ctx)
		more := last >= 0 && n > last // one has just become ready, and the next is under way
		last = n
		return more, err
	})
	if err != nil {
		return err
	}
	return pause(ctx, rand.N(refillPhase))
}

// unlike measures the first call of a user for whose calls no container waits.
func (s *service) unlike(ctx context.Context, user string) (time.Duration, error) {
	if err := s.register(ctx, user); err != nil {
		return 0, err
	}
	return timed(func() error {
		out, err := s.call(ctx, user, types.Exec{Argv: []string{"true"}, Restrictions: types.Restrictions{DenyRead: []string{"/home/hidden"}}})
		if err == nil && !out.Cold {
			err = errors.New("the first call of a kind that is not kept ready found a container")
		}
		return err
	})
}
