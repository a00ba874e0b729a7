package main

import (
	"context"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// removeUser removes a user. Each sandbox of E2B's clients is a user with a home of its own, and is killed. In a cluster
// this host holds the user, and gives up the seat of one of whom nothing is left.
func (d *daemon) removeUser(ctx context.Context, service *sandbox.Service, user ids.User, home bool) (r sandbox.RemovedUser, err error) {
	if service.Named(user.String()) == "" { // it is not this caller's to end, and neither is its seat
		return service.RemoveUser(ctx, d.trash, user, home)
	}
	if box, none := d.lasting.Any(user.String()); none == nil {
		if !home {
			return r, errs.Conflict("user %q is a sandbox of E2B's clients, whose home goes with it: ask for home, too, or kill it there", user)
		}
		return sandbox.RemovedUser{Sandboxes: 1, Containers: 1, Home: true}, box.Kill(ctx)
	}
	r, err = service.RemoveUser(ctx, d.trash, user, home)
	if home && err == nil || cerrdefs.IsNotFound(err) {
		d.lasting.Abandon(user.String())
	}
	return r, err
}
