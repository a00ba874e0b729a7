package dockerexec

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/network"
	"golang.org/x/sync/errgroup"
)

// Endpoint is a running container on a network. PID is its first process's, as the host counts.
type Endpoint struct {
	Spec Spec
	// Holder identifies the container that has the address, even when its name and its user change. It is unique.
	Holder uint64
	Addr   netip.Addr
	MAC    net.HardwareAddr
	PID    int
}

func (e *Executor) newHolder() uint64 { return e.holders.Add(1) }

// join registers a container that is to be made and returns how it is connected; nil if it has no network.
func (e *Executor) join(ctx context.Context, c *container) (*network.NetworkingConfig, error) {
	profile := c.spec.Egress.Profile
	if profile == "" {
		return nil, nil
	}
	n, err := e.network(ctx, c.spec.Platform.Network, profile, nil)
	if err != nil {
		return nil, err
	}
	holder := e.newHolder()
	addr, err := e.cfg.Networks.Add(c.spec, holder)
	if err != nil {
		return nil, err
	}
	c.holder, c.gateway = holder, n.Gateway
	return &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{
		n.Name: {IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: addr.String()}},
	}}, nil
}

func (e *Executor) wiring(c *container) wiring {
	p := c.spec.Egress.Profile
	if p == "" {
		return wiring{}
	}
	return wiring{network: c.spec.Platform.Network + "-" + p, gateway: c.gateway.String(), resolvConf: e.cfg.Networks.ResolvConf(p)}
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
func (e *Executor) leave(c *container) {
	if c.holder != 0 {
		e.cfg.Networks.Remove(c.spec.Egress.Profile, c.holder)
		c.holder = 0
	}
}

// bind opens network access for a container that has started. A pooled one whose network is to be open gets none until
// it has a user.
func (e *Executor) bind(ctx context.Context, c *container) error {
	if c.spec.Egress.Profile == "" {
		return nil
	}
	endpoint, err := e.endpoint(ctx, c)
	if err != nil {
		return err
	}
	if c.spec.IsPooled() && c.spec.Egress.IsOpen() {
		c.unbound = &endpoint
		return nil
	}
	return e.cfg.Networks.Bind(endpoint)
}

// assign lets a pooled container reach what its new user may reach.
func (e *Executor) assign(from, to *container) error {
	if from.holder == 0 {
		return nil
	}
	if err := e.cfg.Networks.Assign(from.holder, from.spec, to.spec); err != nil || from.unbound == nil {
		return err
	}
	endpoint := *from.unbound
	endpoint.Spec = to.spec
	return e.cfg.Networks.Bind(endpoint)
}

// endpointLimit is how long Docker may take to say how a container is connected. If the container's start is held up
// by what runs in it, Docker never answers.
const endpointLimit = 15 * time.Second

// endpoint asks Docker how a container is connected.
func (e *Executor) endpoint(ctx context.Context, c *container) (Endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, endpointLimit)
	defer cancel()
	found, err := e.docker.ContainerInspect(ctx, c.id)
	if err != nil {
		return Endpoint{}, fmt.Errorf("cannot inspect: %w", err)
	}
	name := c.spec.Platform.Network + "-" + c.spec.Egress.Profile
	end := found.NetworkSettings.Networks[name]
	if end == nil || len(found.NetworkSettings.Networks) != 1 {
		return Endpoint{}, fmt.Errorf("the container is not on network %s alone: %w", name, cerrdefs.ErrFailedPrecondition)
	}
	addr, err := netip.ParseAddr(end.IPAddress)
	if err != nil || !found.State.Running {
		return Endpoint{}, fmt.Errorf("the container has no address on network %s: it has ended", name)
	}
	mac, err := net.ParseMAC(end.MacAddress)
	if err != nil {
		return Endpoint{}, fmt.Errorf("the container has no hardware address on network %s: %w", name, err)
	}
	return Endpoint{Spec: c.effectiveSpec(), Holder: c.holder, Addr: addr, MAC: mac, PID: found.State.Pid}, nil
}

// readmit opens the networks of adopted containers, which are endpoints there already. What fails here, bind will
// find.
func (e *Executor) readmit(ctx context.Context, adopted []*container) {
	type place struct{ base, profile string }
	endpoints := map[place][]Endpoint{}
	var mu sync.Mutex
	var asking errgroup.Group
	asking.SetLimit(inspectAtOnce)
	for _, c := range adopted {
		at := place{c.spec.Platform.Network, c.spec.Egress.Profile}
		if at.profile == "" {
			continue
		}
		c.holder = e.newHolder()
		asking.Go(func() error {
			endpoint, err := e.endpoint(ctx, c)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				endpoints[at] = append(endpoints[at], endpoint)
			}
			return nil
		})
	}
	_ = asking.Wait()
	for at, list := range endpoints {
		if _, err := e.network(ctx, at.base, at.profile, list); err != nil {
			e.cfg.Log.Warn().Err(err).Str("profile", at.profile).Msg("cannot open the network of adopted containers")
		}
	}
}
