package sandbox

import (
	"context"
	"fmt"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
)

// checkWarm refuses tags that a call to the sandbox would be refused, and tags that do not
// determine a container: one with a network also depends on the names of its call.
func (s *Service) checkWarm(box Sandbox, tags []string) error {
	c, err := s.planner.Resolve(box, Confinement{Permissions: tags})
	if err != nil {
		return err
	}
	decided, err := s.planner.DecideView(c)
	if err != nil {
		return fmt.Errorf("warm: %w", err)
	}
	if decided.Decision.Network {
		return errs.Invalid(
			"warm cannot include @network: the allowed domains are unknown until the call; " +
				"leave @network out, or run `true` with these domains")
	}
	if names := decided.Decision.Secrets; len(names) > 0 {
		return errs.Invalid(
			"warm cannot include %s%s: it makes no difference to a container without a network; leave it out",
			policy.TagSecret, names[0])
	}
	return nil
}

// warm makes the container of a call with these tags, in the background.
func (s *Service) warm(box Sandbox, tags []string) {
	s.runner.Warm(box.User.String(), s.token, func(ctx context.Context,
		make func(dockerexec.Spec)) error {
		done, err := s.registry.Keep(box)
		if err != nil { // deleted by now, maybe with its user, who gets no home anew
			return err
		}
		defer done()
		c, err := s.planner.Resolve(box, Confinement{Permissions: tags})
		if err != nil {
			return err
		}
		decided, err := s.planner.Decide(c)
		if err != nil {
			return err
		}
		s.pool.bind(ctx, decided, nil, s.token)
		p, err := s.planner.Plan(ctx, decided, false)
		if err == nil {
			make(p.Spec)
		}
		return err
	})
}
