package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/quota"
)

// PlanPersistent returns the Spec of the container of a persistent sandbox, and its commands'
// environment. With fromPool it first gives its user, who must not have a folder yet, one of the
// pool's homes, with the container that has it: whoever starts the Spec finds these. Nothing
// depends on whether there is one.
func (s *Service) PlanPersistent(ctx context.Context, id string, l plan.Persistent,
	fromPool bool) (dockerexec.Spec, map[string]string, error) {
	for _, variables := range l.Env {
		if err := plan.CheckVariables("env", variables); err != nil {
			return dockerexec.Spec{}, nil, err
		}
	}
	box, err := s.Get(id)
	if err != nil {
		return dockerexec.Spec{}, nil, err
	}
	decided, err := s.planner.DecidePersistent(box, l)
	if err != nil {
		return dockerexec.Spec{}, nil, err
	}
	if fromPool {
		shape := l.Shape()
		s.pool.bind(ctx, decided, &shape, s.token)
	}
	p, err := s.planner.PlanPersistent(ctx, decided, id, l.Shape())
	if err != nil {
		return dockerexec.Spec{}, nil, err
	}
	return p.Spec, p.PersistentEnvironment(l.Env...), nil
}

// PersistentLimits returns the limits that a persistent sandbox would have. The error says why
// there can be none.
func (s *Service) PersistentLimits(ctx context.Context,
	l plan.Persistent) (dockerexec.Limits, error) {
	return s.planner.PersistentLimits(ctx, l.Shape())
}

// PersistentRefusals begins to gather what a persistent sandbox tries to reach and cannot,
// whichever of its commands tries. end ends that, and returns it as Result.Refused and MoreRefused
// have it; whoever calls PersistentRefusals has to call it.
func (s *Service) PersistentRefusals(id string) (end func() ([]decisions.Summary, int)) {
	if s.cfg().Decisions == nil {
		return (*refusals)(nil).end
	}
	return s.refusals(dockerexec.Spec{Persistent: id}.ContainerName(), nil).end
}

// PersistentEgress returns what a persistent sandbox may reach. As for calls, the operator's rules
// decide.
func (s *Service) PersistentEgress(id string, l plan.Persistent) (dockerexec.Egress, error) {
	box, err := s.Get(id)
	if err != nil {
		return dockerexec.Egress{}, err
	}
	return s.planner.PersistentEgress(box, l)
}

// CheckCommand refuses a command that no container could start.
func CheckCommand(argv []string, env map[string]string) error {
	return checkCommand(Request{Argv: argv, Env: env})
}

// removedUsers is the folder in usersDir that holds the remains of users until they are removed.
const removedUsers = ".removed"

// RemoveFiles removes all that a user has on the host. The files are removed in the background. The
// user's containers must be gone.
func (s *Service) RemoveFiles(trash *hostfs.Trash, user ids.User) error {
	planner := s.planner.Files()
	beside := filepath.Join(planner.UsersDir(), removedUsers)
	if err := os.Mkdir(beside, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot remove the files of user %q: %w", user, errs.WithoutPath(err))
	}
	if err := trash.Discard(planner.UserDir(user.String()), beside); err != nil {
		return fmt.Errorf("cannot remove the files of user %q: %w", user, errs.WithoutPath(err))
	}
	return nil
}

// TakeCommand counts a command of a persistent sandbox, until done is called. With there, the
// command exists already, and is counted even beyond the bound.
func (s *Service) TakeCommand(id string, there bool) (done func(), err error) {
	box, err := s.Get(id)
	if err != nil {
		return nil, err
	}
	return s.takePersistent(box.User.String(), quota.Commands, there)
}

// TakeContainer does the same for the container of a persistent sandbox.
func (s *Service) TakeContainer(id string, there bool) (done func(), err error) {
	return s.takePersistent(id, quota.Containers, there)
}

func (s *Service) takePersistent(user string, r quota.Resource,
	there bool) (done func(), err error) {
	account := quota.Account{User: user, Token: s.token}
	if there {
		return s.cfg().Quotas.Hold(account, r, 1), nil
	}
	return s.cfg().Quotas.Take(account, r, 1)
}
