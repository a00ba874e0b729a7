package sandbox

import (
	"context"
	"fmt"

	"github.com/daycare-run/sandbox/internal/errs"
)

// A sandbox may be paused: its record says so, its durable processes are paused, and its user's
// idle containers are frozen. Whatever runs something in it resumes it first. Its files are on the
// host, and stay within reach.

// Pause pauses a sandbox until it is resumed, across restarts of the service. It freezes the
// sandbox's processes, and its user's other containers in which nothing runs. The error is of class
// Conflict while commands run in it.
func (s *Service) Pause(ctx context.Context, id string) (Sandbox, error) {
	box, err := s.setPaused(ctx, id, true)
	if err != nil {
		return box, err
	}
	s.runner.FreezeIdle(box.User.String()) // including those that it shares with the user's other sandboxes
	return box, nil
}

// Resume resumes a sandbox. One that is not paused stays as it is.
func (s *Service) Resume(ctx context.Context, id string) (Sandbox, error) {
	return s.setPaused(ctx, id, false)
}

func (s *Service) setPaused(ctx context.Context, id string, paused bool) (Sandbox, error) {
	box, err := s.Get(id)
	if err != nil {
		return Sandbox{}, err
	}
	defer s.registry.LockPause(box.ID)()
	if box, err = s.registry.SetPaused(box.ID, paused); err != nil {
		return box, err
	}
	err = s.processes.FollowPause(ctx, box.ID.String())
	if err == nil {
		err = s.persistent.FollowPause(ctx, box)
	}
	if err != nil {
		what := "paused, but not all of its processes are: pause it again"
		if !paused {
			what = "resumed, but not all of its processes are: resume it again"
		}
		return box, fmt.Errorf("sandbox %q is %s: %w", box.ID, what, err)
	}
	return box, nil
}

// enter counts a command of a sandbox as in progress until leave is called. It resumes a paused
// sandbox, or refuses the command if onlyIfRunning is set.
func (s *Service) enter(ctx context.Context, box Sandbox,
	onlyIfRunning bool) (leave func(), err error) {
	for {
		leave, paused, err := s.registry.Begin(box)
		switch {
		case err != nil || !paused:
			return leave, err
		case onlyIfRunning:
			return nil, errs.Conflict(
				"sandbox %q is paused, and the call needs a running one (onlyIfRunning): POST /v1/sandboxes/%s/resume first, or leave onlyIfRunning out",
				box.ID, box.ID)
		}
		if _, err := s.Resume(ctx, box.ID.String()); err != nil {
			return nil, err
		}
	}
}
