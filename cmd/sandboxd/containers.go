package main

import (
	"context"

	"github.com/daycare-run/sandbox/dockerexec"
)

// gate implements dockerexec.Gate: who holds users, and what the records of processes and of
// persistent sandboxes say, decides about containers.
type gate struct{ *daemon }

// May implements dockerexec.Gate.
func (g gate) May(user string) error {
	if g.membership == nil {
		return nil
	}
	return g.membership.MayStart(user)
}

// Wanted implements dockerexec.Gate.
func (g gate) Wanted(spec dockerexec.Spec) (w dockerexec.Wanted) {
	if spec.Persistent == "" {
		return dockerexec.Wanted{Running: !g.processes.Paused(spec.User, spec.Process.ID)}
	}
	if reach, known := g.persistent.Egress(spec.Persistent); known {
		w.Reach = &reach
	}
	return w // the sandbox itself resumes it
}

// followContainers passes on what happens to containers, until ctx ends.
func (d *daemon) followContainers(ctx context.Context) {
	for {
		select {
		case what := <-d.executor.Changes():
			for process := range what.Ended {
				d.processes.Ended(process)
			}
			if what.Compared {
				d.processes.Lost()
				d.pool.Review()
			}
		case <-ctx.Done():
			return
		}
	}
}
