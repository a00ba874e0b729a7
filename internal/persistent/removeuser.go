package persistent

import (
	"context"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// RemoveUser removes a user for a caller who sees the users of service. Each sandbox here is a user
// with a home of its own, and is killed. In a cluster this host holds the user, and gives up the
// seat of one of whom nothing is left.
func (s *Sandboxes) RemoveUser(ctx context.Context, service *sandbox.Service, user ids.User,
	home bool) (sandbox.RemovedUser, error) {
	name := user.String()
	if service.Named(name) == "" { // it is not this caller's to end, and neither is its seat
		return service.RemoveUser(ctx, s.cfg.Trash, user, home)
	}
	if box, none := s.Any(name); none == nil {
		if !home {
			return sandbox.RemovedUser{},
				errs.Conflict("user %q is a sandbox of E2B's clients, whose home goes with it: "+
					"ask for home, too, or kill it there", user)
		}
		return sandbox.RemovedUser{Sandboxes: 1, Containers: 1, Home: true}, box.Kill(ctx)
	}
	removed, err := service.RemoveUser(ctx, s.cfg.Trash, user, home)
	if home && err == nil || cerrdefs.IsNotFound(err) {
		s.Abandon(name)
	}
	return removed, err
}
