package sandbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/ids"
)

// RemovedUser counts what RemoveUser has removed.
type RemovedUser struct {
	Sandboxes, Processes, Containers int
	// Home says that the home was removed, too.
	Home bool
}

// RemoveUser ends everything of a user (commands, processes, containers) and forgets the user's
// sandboxes. With home, it also removes what the user has on the host; the files go in the
// background. Meanwhile the user's other calls are refused. After an error something may be left:
// calling it again goes on. A user who has nothing is not found. One who is a persistent sandbox is
// killed. In a cluster this host holds the user, and gives up the seat of one of whom nothing is
// left.
func (s *Service) RemoveUser(ctx context.Context, user ids.User, home bool) (RemovedUser, error) {
	name := user.String()
	if s.persistent == nil || !s.scope.Has(user) { // not this caller's, and neither is the seat
		return s.removeUser(ctx, user, home)
	}
	if box, none := s.persistent.Any(name); none == nil {
		if !home {
			return RemovedUser{}, errs.Conflict("user %q is a sandbox of E2B's clients, whose "+
				"home goes with it: ask for home, too, or kill it there", user)
		}
		return RemovedUser{Sandboxes: 1, Containers: 1, Home: true}, box.Kill(ctx)
	}
	removed, err := s.removeUser(ctx, user, home)
	if home && err == nil || cerrdefs.IsNotFound(err) {
		s.persistent.Abandon(name)
	}
	return removed, err
}

func (s *Service) removeUser(ctx context.Context, user ids.User,
	home bool) (r RemovedUser, _ error) {
	name := user.String()
	theirs := func() []Sandbox {
		return slices.DeleteFunc(s.List(), func(box Sandbox) bool { return box.User != user })
	}
	containers := slices.DeleteFunc(s.Containers(), func(c dockerexec.Summary) bool {
		return c.User != name
	})
	processes := s.processes.List(name)
	found := s.scope.Has(user)
	if found && len(theirs())+len(containers)+len(processes) == 0 {
		var err error
		if found, err = s.planner.Files().HasFolder(name); err != nil {
			return r, err
		}
	}
	if !found {
		return r, errs.NotFound("user %q has no sandbox, no process and no home here", user)
	}
	open, err := s.registry.CloseUser(user)
	if err != nil {
		return r, err
	}
	defer open()
	if err := s.endAll(ctx, user); err != nil {
		return r, fmt.Errorf(
			"cannot end everything of user %q, so nothing is removed but what has ended; remove the user again: %w",
			user, err)
	}
	r.Processes, r.Containers = len(processes), len(containers)
	for _, box := range theirs() {
		if err := s.registry.Delete(box.ID); err != nil && !cerrdefs.IsNotFound(err) {
			return r, fmt.Errorf(
				"everything of user %q has ended, but not all sandboxes are forgotten; remove the user again: %w",
				user, err)
		}
		r.Sandboxes++
	}
	if home {
		if r.Home, err = s.removeFiles(name); err != nil {
			return r, fmt.Errorf("everything but the files is removed; remove the user again: %w",
				err)
		}
	}
	return r, nil
}

// removeFiles removes what a user has on the host, and reports whether there was anything.
func (s *Service) removeFiles(name string) (removed bool, _ error) {
	files := s.planner.Files()
	if has, err := files.HasFolder(name); err != nil || !has {
		return false, err
	}
	err := files.RemoveUser(s.trash, name)
	return err == nil, err
}

// endAll ends everything of a user for whom nothing begins meanwhile, and returns when nothing is
// left.
func (s *Service) endAll(ctx context.Context, user ids.User) error {
	const again = 20 * time.Millisecond // what had begun before may still make a container or a process
	name := user.String()
	for {
		var ending errgroup.Group
		for _, p := range s.processes.List(name) {
			ending.Go(func() error {
				err := s.processes.Remove(ctx, name, p.ID)
				if cerrdefs.IsNotFound(err) {
					return nil
				}
				return err
			})
		}
		ending.Go(func() error { return s.executor.Leave(ctx, name) })
		ending.Go(func() error { return s.persistent.EndUser(name) })
		if err := ending.Wait(); err != nil {
			return err
		}
		s.detached.Drop(name)
		if !s.registry.IsBusy(user) && len(s.processes.List(name)) == 0 {
			return s.executor.Leave(ctx, name)
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
