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
func (h *host) newNetworks() *networks.Networks {
	return networks.New(networks.Config{
		Engine: h.engine, Filter: h.cfg.Filter, Containers: onNetworks{h},
		Labels: h.owner().labels(), Owner: labelInstance, GatewayLabel: labelGateway,
		Image: func(ctx context.Context) (string, error) {
			platform, err := h.cfg.Platforms.Current(ctx)
			return platform.ImageID, err
		},
		Log: h.cfg.Log,
	})
}

// candidate returns what a Spec's container is to networks, and what it may reach.
func (s Spec) candidate(reach Egress) networks.Candidate {
	return networks.Candidate{
		Party: networks.Party{
			Name: s.ContainerName(), User: s.User, Persistent: s.Persistent != "", Egress: reach,
		},
		Base: s.Platform.Network, Pooled: s.IsPooled(), Detached: s.isDetached(),
	}
}

// join gives a container that is to be made its place on its network. What earlier services have
// left there is known before.
func (h *host) join(ctx context.Context, c *Container) (err error) {
	if c.spec.Egress.Profile == "" {
		return nil
	}
	if err := h.reconcileOnce(ctx); err != nil {
		return err
	}
	c.net, err = h.nets.Join(ctx, c.spec.candidate(c.spec.Egress))
	return err
}

// bindFound opens network access for a detached container that was found. If that fails,
// mendNetworks tries it again.
func (h *host) bindFound(ctx context.Context, c *Container) {
	again, err := c.net.Bind(ctx, c.ID())
	if cerrdefs.IsNotFound(err) {
		h.Tell(ctx, c, Incident{What: "ending a process that has lost its network", Err: err})
		h.kill(c, "its network was gone when the service took it over, so it was ended")
	} else if err != nil && !again && h.ctx.Err() == nil {
		h.Tell(ctx, c, Incident{What: "a process keeps running without a network", Err: err})
	}
}

// networkCheck is how often the networks in use are checked.
const networkCheck = 30 * time.Second

// watchNetworks checks the networks in use, until Shutdown.
func (h *host) watchNetworks() {
	ticker := time.NewTicker(networkCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			h.mendNetworks()
		case <-h.ctx.Done():
			return
		}
	}
}

// mendNetworks checks the networks in use now. Then it binds the detached containers that could not
// be bound before.
func (h *host) mendNetworks() {
	if h.reconcileOnce(h.ctx) != nil {
		return // that is tried, and told, by others
	}
	ready := h.checkNetworks(h.ctx)
	for _, c := range h.inState(life.Ready, life.Frozen) {
		if c.net.Failed() && ready[c.spec.Egress.Profile] {
			h.bindFound(h.ctx, c)
		}
	}
}

// checkNetworks checks the networks in use, and returns the profiles of those that are ready.
func (h *host) checkNetworks(ctx context.Context) (ready map[string]bool) {
	ready = map[string]bool{}
	for profile, err := range h.nets.Check(ctx) {
		ready[profile] = err == nil
		if err != nil && h.ctx.Err() == nil {
			h.cfg.Log.Warn().Err(err).Str("profile", profile).
				Msg("cannot check the network, or recreate it or its gateway")
		}
	}
	return ready
}

// onNetworks are the containers that networks may end.
type onNetworks struct{ h *host }

// Clear implements networks.Containers.
func (o onNetworks) Clear(ctx context.Context, profile string) error {
	var faults []error
	for _, c := range o.h.inState(life.Ready, life.Draining, life.Frozen) {
		switch {
		case c.spec.Egress.Profile != profile:
		case c.spec.isDetached():
			faults = append(faults, o.h.StopProcess(ctx, c.ID(), syscall.SIGKILL, 0))
		case c.Do(life.Remove, lostError{ErrLost}) == life.Removes:
			if err := o.h.Remove(c); err != nil {
				faults = append(faults, err)
				o.h.RemoveLater(c)
			}
		}
	}
	return errors.Join(faults...)
}

// retireGateway removes a gateway that was found and that no network has any more.
func (h *host) retireGateway(ctx context.Context, found engine.Container, platform Platform) {
	if err := h.nets.Retire(ctx, found, platform.Network); err != nil {
		h.cfg.Log.Warn().Err(err).Msg("cannot remove a gateway that no network has")
	}
}
