package dockerexec

import (
	"context"
	"errors"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/dockerexec/networks"
	"github.com/daycare-run/sandbox/internal/engine"
)

// Egress is what a container may reach. Without a Profile it has no network.
type Egress = networks.Egress

// newNetworks returns the networks of this service.
func (e *Executor) newNetworks() *networks.Networks {
	return networks.New(networks.Config{
		Engine: e.engine, Filter: e.cfg.Filter, Containers: onNetworks{e},
		Labels: e.owner().labels(), Owner: labelInstance, GatewayLabel: labelGateway,
		Image: func(ctx context.Context) (string, error) {
			platform, err := e.cfg.Platforms.Current(ctx)
			return platform.ImageID, err
		},
		Log: e.cfg.Log,
	})
}

// candidate returns what a Spec's container is to networks, and what it may reach.
func (s Spec) candidate(reach Egress) networks.Candidate {
	return networks.Candidate{
		Party: networks.Party{
			Name: s.ContainerName(), User: s.User, Persistent: s.Persistent != "", Egress: reach,
		},
		Base: s.Platform.Network, Pooled: s.IsPooled(), Detached: s.isDetached(),
		Linked: s.isLinked(),
	}
}

// join gives a container that is to be made its place on its network. What earlier services have
// left there is known before.
func (e *Executor) join(ctx context.Context, c *Container) (err error) {
	if c.spec.Egress.Profile == "" {
		return nil
	}
	if err := e.reconcileOnce(ctx); err != nil {
		return err
	}
	c.net, err = e.nets.Join(ctx, c.spec.candidate(c.spec.Egress))
	return err
}

// bindFound opens network access for a detached container that was found. If that fails,
// mendNetworks tries it again.
func (e *Executor) bindFound(ctx context.Context, c *Container) {
	again, err := c.net.Bind(ctx, c.ID())
	if cerrdefs.IsNotFound(err) {
		e.Tell(ctx, c, Incident{What: "ending a process that has lost its network", Err: err})
		e.kill(c, "its network was gone when the service took it over, so it was ended")
	} else if err != nil && !again && e.ctx.Err() == nil {
		e.Tell(ctx, c, Incident{What: "a process keeps running without a network", Err: err})
	}
}

// networkCheck is how often the networks in use are checked.
const networkCheck = 30 * time.Second

// mendSoon has the networks checked, now or again. It does not block.
func (e *Executor) mendSoon() {
	select {
	case e.mending <- struct{}{}:
	default: // it is about to
	}
}

// watchNetworks checks the networks in use, until Shutdown. It alone does, so that each container
// is bound by one goroutine at a time.
func (e *Executor) watchNetworks() {
	ticker := time.NewTicker(networkCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			e.mendNetworks()
		case <-e.mending:
			e.mendNetworks()
		case <-e.ctx.Done():
			return
		}
	}
}

// mendNetworks checks the networks in use now. Then it binds the detached containers that could not
// be bound before.
func (e *Executor) mendNetworks() {
	if e.reconcileOnce(e.ctx) != nil {
		return // that is tried, and told, by others
	}
	ready := e.checkNetworks(e.ctx)
	for _, c := range e.inState(life.Ready, life.Frozen) {
		if c.net.Failed() && ready[c.spec.Egress.Profile] {
			e.bindFound(e.ctx, c)
		}
	}
}

// checkNetworks checks the networks in use, and returns the profiles of those that are ready.
func (e *Executor) checkNetworks(ctx context.Context) (ready map[string]bool) {
	ready = map[string]bool{}
	for profile, err := range e.nets.Check(ctx) {
		ready[profile] = err == nil
		if err != nil && e.ctx.Err() == nil {
			e.cfg.Log.Warn().Err(err).Str("profile", profile).
				Msg("cannot check the network, or recreate it or its gateway")
		}
	}
	return ready
}

// onNetworks are the containers that networks may end.
type onNetworks struct{ e *Executor }

// Clear implements networks.Containers.
func (o onNetworks) Clear(ctx context.Context, profile string, bound []string) error {
	for _, id := range bound { // before those that have been made: it becomes one of them, or never
		if c := o.e.known(id); c != nil {
			c.Do(life.Abort, ErrLost)
		}
	}
	var faults []error
	for _, c := range o.e.inState(life.Ready, life.Draining, life.Frozen) {
		switch {
		case c.spec.Egress.Profile != profile:
		case c.spec.isDetached():
			faults = append(faults, o.e.StopProcess(ctx, c.ID(), syscall.SIGKILL, 0))
		case c.Do(life.Remove, ErrLost) == life.Removes:
			if err := o.e.Remove(c); err != nil {
				faults = append(faults, err)
				o.e.RemoveLater(c)
			}
		}
	}
	return errors.Join(faults...)
}

// retireGateway removes a gateway that was found and that no network has any more.
func (e *Executor) retireGateway(ctx context.Context, found engine.Container, platform Platform) {
	if err := e.nets.Retire(ctx, found, platform.Network); err != nil {
		e.cfg.Log.Warn().Err(err).Msg("cannot remove a gateway that no network has")
	}
}
