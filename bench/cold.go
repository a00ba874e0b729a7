package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/daycare-run/sandbox/api/types"
)

// cold has the times of `true` if there is no container yet.
type cold struct {
	api sample
	// run is docker run --rm until the container is gone; exit is docker run until it has exited.
	run, exit sample
}

// measureCold measures the ways by turns, and each turn begins with another way, so that Docker's
// tidying up after one way affects all of them.
func (s *service) measureCold(ctx context.Context) (cold, error) {
	var c cold
	t, err := s.twin(ctx, "true")
	if err != nil {
		return c, err
	}
	users := 0
	ways := []func(*cold) error{
		func(c *cold) error {
			users++
			return c.api.add(s.timeCold(ctx, types.Registration{UserID: fmt.Sprintf("cold-%d", users)}, types.Exec{Argv: []string{"true"}}))
		},
		func(c *cold) error { return c.run.add(s.dockerRun(ctx, t, true)) },
		func(c *cold) error { return c.exit.add(s.dockerRun(ctx, t, false)) },
	}
	for turn := range s.settings.cold + 1 {
		into := &c
		if turn == 0 {
			into = &cold{} // warms up
		}
		for i := range ways {
			if err := ways[(turn+i)%len(ways)](into); err != nil {
				return c, err
			}
		}
		if turn > 0 && turn%10 == 0 {
			s.say("%s: cold exec %d of %d", s.runtime, turn, s.settings.cold)
		}
	}
	return c, nil
}

// timeCold measures the first exec of a new user, including the making of the home, and removes the
// container.
func (s *service) timeCold(ctx context.Context, r types.Registration, e types.Exec) (time.Duration, error) {
	user := r.UserID
	if _, err := s.api.Put(ctx, user, r); err != nil {
		return 0, err
	}
	begun := time.Now()
	out, err := s.call(ctx, user, e)
	took := time.Since(begun)
	if err != nil {
		return 0, err
	}
	if !out.Cold {
		return 0, errors.New("the first exec of a new user found a container")
	}
	label := filters.NewArgs(filters.Arg("label", labelInstance+"="+s.instance), filters.Arg("label", "run.daycare.sandbox.user="+user))
	list, err := s.docker.ContainerList(ctx, container.ListOptions{Filters: label})
	if err != nil {
		return 0, err
	}
	for _, c := range list {
		if err := s.remove(c.ID); err != nil {
			return 0, err
		}
	}
	return took, s.api.Delete(ctx, user)
}
