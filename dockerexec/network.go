package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/engine"
)

// A container with network access is on a bridge network of ours, one for each profile. Docker
// makes the bridge and moves packets; what may pass is up to Networks.

// Egress is what a container may reach. Without a Profile it has no interface at all.
type Egress struct {
	// Profile names the network.
	Profile string `json:"profile"`
	// Domains are patterns of names, in canonical form, and Denied patterns of names that Domains
	// allows but that may not be reached all the same.
	Domains []string `json:"domains"`
	Denied  []string `json:"denied"`
	// Addresses are addresses and ranges that may be reached whatever the name, except those in
	// DeniedAddresses.
	Addresses       []string `json:"addresses,omitempty"`
	DeniedAddresses []string `json:"deniedAddresses,omitempty"`
}

// IsOpen reports whether the whole network of the profile may be reached, unfiltered.
func (e Egress) IsOpen() bool { return len(e.Domains) == 1 && e.Domains[0] == "*" }

// Network is a bridge network of ours, as Docker knows it.
type Network struct {
	Profile, Name, Bridge string
	Subnet                netip.Prefix
	Gateway               netip.Addr
	// GatewayID is the container that is its gateway, and GatewayDir the folder that the gateway
	// shares with the service. Both are empty if there is none.
	GatewayID, GatewayDir string
}

// networks decides what passes on our networks.
type networks interface {
	// Subnets returns the subnets that a new network may have, the preferred one first.
	Subnets() ([]netip.Prefix, error)
	// Gateway says what a network's gateway is made with, if it is to have one.
	Gateway(Network) (g Gateway, wanted bool, err error)
	// Open makes a network ready, if it is not, and registers the endpoints. It is called before
	// each use. Whatever else is on a network that was not ready is cut off for good. The error is
	// errdefs.ErrFailedPrecondition if the network is not what Docker takes it for.
	Open(context.Context, Network, []Endpoint) error
	// ResolvConf returns the host's file for /etc/resolv.conf.
	ResolvConf(profile string) string
	// Add registers a container that will be made, and gives it an address. Each Add is followed by
	// a Remove, and so is each Endpoint of Open. For a holder see Endpoint.
	Add(spec Spec, holder uint64) (netip.Addr, error)
	// Bind opens network access for a container that has started and in which nothing of a tenant
	// runs yet.
	Bind(Endpoint) error
	// Assign lets a holder that could reach nothing reach what another Spec allows.
	Assign(holder uint64, from, to Spec) error
	// Change lets a running container reach what its Endpoint's Spec says, instead of what it could
	// reach before.
	Change(Endpoint) error
	// Remove ends a holder's connections and takes its address back, if it still has one.
	Remove(profile string, holder uint64)
}

// networkCheck is how often the networks in use are checked.
const networkCheck = 30 * time.Second

// bridgeSuffixes tell the profiles' interfaces apart; an interface's name has at most 15 bytes.
var bridgeSuffixes = map[string]string{"isolated": "-iso", "local": "-loc"}

// network finds or creates the network of a profile, and recreates one that was changed.
func (h *host) network(ctx context.Context, base, profile string) (Network, error) {
	if err := h.reconcileOnce(ctx); err != nil {
		return Network{}, err
	}
	h.networking.Lock()
	defer h.networking.Unlock()
	wanted := Network{Profile: profile, Name: base + "-" + profile,
		Bridge: base + bridgeSuffixes[profile]}
	found, err := h.findNetwork(ctx, wanted)
	if err == nil {
		if found, err = h.open(ctx, found); err == nil {
			return found, nil
		}
	}
	if !cerrdefs.IsNotFound(err) && !cerrdefs.IsFailedPrecondition(err) {
		return Network{}, err
	}
	if cerrdefs.IsFailedPrecondition(err) {
		h.logOf(ctx).Warn().Err(err).Str("network", wanted.Name).
			Msg("recreating the network: it was changed")
		if err := h.removeNetwork(ctx, wanted); err != nil {
			return Network{}, err
		}
	}
	made, err := h.makeNetwork(ctx, wanted)
	if err != nil {
		return Network{}, err
	}
	if made, err = h.open(ctx, made); cerrdefs.IsFailedPrecondition(err) {
		return Network{},
			fmt.Errorf("cannot use the network that Docker has just made; the service has to run in Docker's network namespace: %v",
				err)
	} else if err != nil {
		return Network{}, err
	}
	return made, nil
}

// open makes sure that a network's gateway is there, and that the network is ready. It names all
// containers of an earlier service, whoever is the first to open the network: one that was not
// named would have lost it. networking is held.
func (h *host) open(ctx context.Context, n Network) (Network, error) {
	n, err := h.gateway(ctx, n)
	if err != nil {
		return n, err
	}
	found, at := h.unregistered(ctx, n)
	if err := h.cfg.Networks.Open(ctx, n, at); err != nil {
		return n, err
	}
	h.registered(found, at)
	return n, nil
}

// findNetwork returns errdefs.ErrNotFound if there is no such network, and
// errdefs.ErrFailedPrecondition if there is one that is ours to replace.
func (h *host) findNetwork(ctx context.Context, n Network) (Network, error) {
	found, err := h.engine.FindNetwork(ctx, n.Name, n.Bridge)
	if cerrdefs.IsNotFound(err) {
		return Network{}, err
	}
	if err != nil {
		return Network{}, fmt.Errorf("cannot inspect network %s: %w", n.Name, h.engine.Explain(err))
	}
	owner, marked := found.Labels[labelInstance]
	if owner != h.cfg.Instance && (marked || found.InUse) {
		return Network{},
			fmt.Errorf("network %s is not this service's: set egress.name to another name, or remove the network (docker network rm %s): %w",
				n.Name, n.Name, cerrdefs.ErrConflict)
	}
	changed := func(what string) (Network, error) {
		return Network{}, fmt.Errorf("network %s %s: %w", n.Name, what,
			cerrdefs.ErrFailedPrecondition)
	}
	if !marked {
		return changed("is of another kind")
	}
	if found.Fault != "" {
		return changed(found.Fault)
	}
	n.Subnet, n.Gateway = found.Subnet, found.Gateway
	return n, nil
}

// makeNetwork uses the first subnet that Docker accepts, too: Docker knows the subnets of its other
// networks.
func (h *host) makeNetwork(ctx context.Context, n Network) (Network, error) {
	subnets, err := h.cfg.Networks.Subnets()
	if err != nil {
		return Network{}, err
	}
	var refusals []error
	for _, subnet := range subnets {
		n.Subnet, n.Gateway = subnet, subnet.Addr().Next()
		err := h.engine.MakeNetwork(ctx, engine.Network{
			Name: n.Name, Labels: h.owner().labels(), Bridge: n.Bridge, Subnet: n.Subnet,
			Gateway: n.Gateway,
		})
		if err == nil {
			h.logOf(ctx).Info().Str("network", n.Name).Stringer("subnet", subnet).
				Msg("network made")
			return n, nil
		}
		refusals = append(refusals, err)
		if !errors.Is(err, engine.ErrSubnetTaken) {
			break
		}
	}
	return Network{}, fmt.Errorf("cannot make network %s: %w", n.Name,
		h.engine.Explain(errors.Join(refusals...)))
}

// networkRemovalLimit gives containers that are being made on the network the time to get ready and
// be removed with it.
const networkRemovalLimit = 15 * time.Second

// removeNetwork removes a network with the containers on it, which are of no use without it.
func (h *host) removeNetwork(ctx context.Context, n Network) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		if err := h.clearNetwork(ctx, n.Profile); err != nil {
			return struct{}{}, backoff.Permanent(err)
		}
		err := h.engine.RemoveNetwork(ctx, n.Name)
		switch {
		case err == nil || cerrdefs.IsNotFound(err):
			return struct{}{}, nil
		case !cerrdefs.IsPermissionDenied(err): // that is how Docker says that something is on it
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithMaxElapsedTime(networkRemovalLimit))
	if err != nil {
		return fmt.Errorf("cannot remove network %s, which was changed: %w", n.Name,
			h.engine.Explain(err))
	}
	return nil
}

// clearNetwork gives up the containers on a network.
func (h *host) clearNetwork(ctx context.Context, profile string) error {
	var faults []error
	for _, c := range h.inState(life.Ready, life.Draining, life.Frozen) {
		switch {
		case c.spec.Egress.Profile != profile:
		case c.spec.isDetached():
			faults = append(faults, h.StopProcess(ctx, c.ID(), syscall.SIGKILL, 0))
		case c.Do(life.Remove, lostError{errLost}) == life.Removes:
			if err := h.remove(c); err != nil {
				faults = append(faults, err)
				h.removeLater(c)
			}
		}
	}
	return errors.Join(faults...)
}

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

// mendNetworks checks the networks in use now, with their gateways, and recreates what is gone or
// was changed. Then it binds the containers that could not be bound before.
func (h *host) mendNetworks() {
	for profile, base := range h.networksInUse() {
		if _, err := h.network(h.ctx, base, profile); err != nil {
			if h.ctx.Err() == nil {
				h.cfg.Log.Warn().Err(err).Str("profile", profile).
					Msg("cannot check the network, or recreate it or its gateway")
			}
			continue
		}
		for _, c := range h.withoutNetwork(profile) {
			h.bindFound(h.ctx, c)
		}
	}
}

// withoutNetwork returns the containers of processes, and persistent ones, that run without a
// network because they could not be bound.
func (h *host) withoutNetwork(profile string) (list []*container) {
	for _, c := range h.inState(life.Ready, life.Frozen) {
		h.mu.Lock()
		without := c.notBound
		h.mu.Unlock()
		if without && c.spec.Egress.Profile == profile {
			list = append(list, c)
		}
	}
	return list
}

// networksInUse returns the profiles of the containers, each with the prefix of its network's name.
func (h *host) networksInUse() map[string]string {
	used := map[string]string{}
	for _, c := range h.inState(inUse...) {
		if p := c.spec.Egress.Profile; p != "" {
			used[p] = c.spec.Platform.Network
		}
	}
	return used
}
