package sandbox

import (
	"context"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/plan"
)

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
