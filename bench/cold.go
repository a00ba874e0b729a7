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

// cold has the times of `true` if there is no container yet; run is docker run --rm.
type cold struct{ api, run sample }

// coldTarget is how long an exec may take, relative to docker run --rm.
const coldTarget = 1.15

func (s *service) measureCold(ctx context.Context) (found cold, err error) {
	t, err := s.twin(ctx, "true")
	if err != nil {
		return found, err
	}
	users := 0
	err = byTurns(s.settings.cold, 1,
		once(&found.api, func() (time.Duration, error) {
			users++
			return s.timeCold(ctx, types.Registration{UserID: fmt.Sprint("cold-", users)}, types.Exec{Argv: []string{"true"}})
		}),
		once(&found.run, func() (time.Duration, error) { return s.dockerRun(ctx, t) }))
	return found, err
}

// timeCold measures the first exec of a new user, including the making of the home, and removes the
// container.
func (s *service) timeCold(ctx context.Context, r types.Registration, e types.Exec) (time.Duration, error) {
	user := r.UserID
	if _, err := s.api.Put(ctx, user, r); err != nil {
		return 0, err
	}
	took, err := timed(func() error {
		out, err := s.call(ctx, user, e)
		if err == nil && !out.Cold {
			err = errors.New("the first exec of a new user found a container")
		}
		return err
	})
	if err != nil {
		return 0, err
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

func coldSection(f findings) section {
	s := section{
		title: "Cold exec of `true`",
		how: "Through the API: the first exec of a user who has never been seen, until the answer is decoded. It includes making\n" +
			"the home and the container, starting it, and the agent's session; the container stays. docker run: create, attach,\n" +
			"start and read to the end, through the Engine API, with the sandbox's own image, user and host configuration\n" +
			"(mounts, limits, security options, no network) and `--rm`, until the container has exited and is removed. The two\n" +
			"take turns, and each turn begins with the other one.",
		head: timesHead("runtime", "way"),
	}
	for _, r := range f.runtimes {
		s.times(r.cold.api, r.runtime, "API, no container yet")
		s.times(r.cold.run, r.runtime, "docker run --rm")
		s.judge(atMost(r.runtime, "p50 of API ÷ docker run --rm", ratio(r.cold.api.median(), r.cold.run.median()), coldTarget, times))
	}
	return s
}
