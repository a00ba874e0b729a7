package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/internal/engine"
)

// Endpoint is a running container on a network. PID is its first process's, as the host counts; 0
// if Docker did not say.
type Endpoint struct {
	Spec Spec
	// Holder identifies the container that has the address, even when its name and its user change.
	// It is unique.
	Holder uint64
	Addr   netip.Addr
	MAC    net.HardwareAddr
	PID    int
}

func (h *host) newHolder() uint64 { return h.holders.Add(1) }

// join registers a container that is to be made and returns its address; invalid if it has no
// network.
func (h *host) join(ctx context.Context, c *container) (addr netip.Addr, err error) {
	profile := c.spec.Egress.Profile
	if profile == "" {
		return addr, nil
	}
	n, err := h.network(ctx, c.spec.Platform.Network, profile)
	if err != nil {
		return addr, err
	}
	holder := h.newHolder()
	if addr, err = h.cfg.Networks.Add(c.spec, holder); err != nil {
		return addr, err
	}
	c.holder, c.gateway = holder, n.Gateway
	return addr, nil
}

func (h *host) wiring(c *container) wiring {
	p := c.spec.Egress.Profile
	if p == "" {
		return wiring{}
	}
	return wiring{network: c.network(), gateway: c.gateway.String(),
		resolvConf: h.cfg.Networks.ResolvConf(p)}
}

// network returns the name of the container's network.
func (c *container) network() string {
	return c.spec.Platform.Network + "-" + c.spec.Egress.Profile
}

// effectiveSpec returns the Spec with the egress that the container has now.
func (c *container) effectiveSpec() Spec {
	spec := c.spec
	if now := c.reach.Load(); now != nil {
		spec.Egress = *now
	}
	return spec
}

// leave gives the container's address back.
func (h *host) leave(c *container) {
	h.mu.Lock()
	holder := c.holder
	c.holder, c.unregistered = 0, nil // whoever is just registering it takes that back
	h.mu.Unlock()
	if holder != 0 {
		h.cfg.Networks.Remove(c.spec.Egress.Profile, holder)
	}
}

// bind opens network access for a container that has started. A pooled one whose network is to be
// open gets none until it has a user.
func (h *host) bind(ctx context.Context, c *container) error {
	if c.spec.Egress.Profile == "" {
		return nil
	}
	endpoint, err := h.endpoint(ctx, c)
	if err != nil {
		return err
	}
	if c.spec.IsPooled() && c.spec.Egress.IsOpen() {
		c.unbound = &endpoint
		return nil
	}
	return h.cfg.Networks.Bind(endpoint)
}

// assign lets a pooled container reach what its new user may reach.
func (h *host) assign(from, to *container) error {
	if from.holder == 0 {
		return nil
	}
	if err := h.cfg.Networks.Assign(from.holder, from.spec, to.spec); err != nil ||
		from.unbound == nil {
		return err
	}
	endpoint := *from.unbound
	endpoint.Spec = to.spec
	return h.cfg.Networks.Bind(endpoint)
}

// endpointLimit is how long Docker may take to say how a container is connected. If the container's
// start is held up by what runs in it, Docker never answers.
const endpointLimit = 15 * time.Second

// endpoint asks Docker how a container is connected.
func (h *host) endpoint(ctx context.Context, c *container) (Endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, endpointLimit)
	defer cancel()
	found, err := h.engine.Inspect(ctx, c.ID())
	if err != nil {
		return Endpoint{}, fmt.Errorf("cannot inspect: %w", err)
	}
	at, err := c.endpointOn(found.Endpoints)
	if err == nil && !found.Runs() {
		err = errors.New("the container has ended")
	}
	at.Holder, at.PID = c.holder, found.PID
	return at, err
}

// endpointOn reads where Docker says that a container is.
func (c *container) endpointOn(endpoints []engine.Endpoint) (Endpoint, error) {
	name := c.network()
	if len(endpoints) != 1 || endpoints[0].Network != name {
		return Endpoint{}, fmt.Errorf("the container is not on network %s alone: %w", name,
			cerrdefs.ErrFailedPrecondition)
	}
	at := endpoints[0]
	if !at.Addr.IsValid() {
		return Endpoint{}, fmt.Errorf("the container has no address on network %s: it has ended",
			name)
	}
	if at.MAC == nil {
		return Endpoint{}, fmt.Errorf("the container has no hardware address on network %s", name)
	}
	return Endpoint{Spec: c.effectiveSpec(), Addr: at.Addr, MAC: at.MAC}, nil
}

// foundAt notes where Docker's list says that a container is, for Networks: the list also has those
// about which Docker says nothing. e.mu is held.
func (h *host) foundAt(c *container, found engine.Container) {
	if c.spec.Egress.Profile == "" {
		return
	}
	c.holder = h.newHolder()
	if at, err := c.endpointOn(found.Endpoints); err == nil { // otherwise bind finds the container missing
		at.Holder = c.holder
		c.unregistered = &at
	}
}

// unregistered returns the containers on a network that were found there and that Networks does not
// know yet.
func (h *host) unregistered(ctx context.Context, n Network) (list []*container, at []Endpoint) {
	h.mu.Lock()
	for c := range h.all {
		if c.unregistered != nil && c.network() == n.Name {
			list, at = append(list, c), append(at, *c.unregistered)
		}
	}
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, endpointLimit)
	defer cancel()
	var asking errgroup.Group
	asking.SetLimit(inspectAtOnce)
	for i, c := range list {
		asking.Go(func() error {
			found, _ := h.InspectProcess(ctx, c.ID()) // without an answer, it is registered all the same
			at[i].PID = found.PID
			return nil
		})
	}
	_ = asking.Wait()
	return list, at
}

// registered notes that Networks knows containers now. Those that were given up meanwhile are taken
// back: when they left, Networks may not have known them yet.
func (h *host) registered(list []*container, at []Endpoint) {
	for i, c := range list {
		h.mu.Lock()
		there := c.unregistered != nil
		c.unregistered = nil
		h.mu.Unlock()
		if !there {
			h.cfg.Networks.Remove(c.spec.Egress.Profile, at[i].Holder)
		}
	}
}

// readmit opens the networks of adopted containers. What fails here, mendNetworks tries again.
func (h *host) readmit(ctx context.Context, adopted []*container) {
	type place struct{ base, profile string }
	used := map[place]bool{}
	for _, c := range adopted {
		if p := c.spec.Egress.Profile; p != "" {
			used[place{c.spec.Platform.Network, p}] = true
		}
	}
	for at := range used {
		if _, err := h.network(ctx, at.base, at.profile); err != nil {
			h.cfg.Log.Warn().Err(err).Str("profile", at.profile).
				Msg("cannot open the network of adopted containers yet")
		}
	}
}
