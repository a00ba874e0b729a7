package dockerexec

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/network"
)

// Endpoint is a container that runs on a network. PID is its first process's, as the host counts.
type Endpoint struct {
	Spec Spec
	Addr netip.Addr
	MAC  net.HardwareAddr
	PID  int
}

// join registers a container to be and says how it is connected; nil for one without a network.
func (e *Executor) join(ctx context.Context, w *warm) (*network.NetworkingConfig, error) {
	profile := w.spec.Egress.Profile
	if profile == "" {
		return nil, nil
	}
	n, err := e.network(ctx, w.spec.Platform.Network, profile, nil)
	if err != nil {
		return nil, err
	}
	addr, err := e.cfg.Networks.Add(w.spec)
	if err != nil {
		return nil, err
	}
	w.addr, w.gateway = addr, n.Gateway
	return &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{
		n.Name: {IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: addr.String()}},
	}}, nil
}

func (e *Executor) wiring(w *warm) wiring {
	p := w.spec.Egress.Profile
	if p == "" {
		return wiring{}
	}
	return wiring{network: w.spec.Platform.Network + "-" + p, gateway: w.gateway.String(), resolvConf: e.cfg.Networks.ResolvConf(p)}
}

// leave gives the address back.
func (e *Executor) leave(w *warm) {
	if w.addr.IsValid() {
		e.cfg.Networks.Remove(w.spec.Egress.Profile, w.addr)
		w.addr = netip.Addr{}
	}
}

// bind opens the way of a container that has started.
func (e *Executor) bind(ctx context.Context, w *warm) error {
	if w.spec.Egress.Profile == "" {
		return nil
	}
	endpoint, err := e.endpoint(ctx, w)
	if err != nil {
		return err
	}
	return e.cfg.Networks.Bind(endpoint)
}

// endpoint asks the engine how a container is connected.
func (e *Executor) endpoint(ctx context.Context, w *warm) (Endpoint, error) {
	found, err := e.docker.ContainerInspect(ctx, w.id)
	if err != nil {
		return Endpoint{}, fmt.Errorf("cannot inspect: %w", err)
	}
	name := w.spec.Platform.Network + "-" + w.spec.Egress.Profile
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
	return Endpoint{Spec: w.spec, Addr: addr, MAC: mac, PID: found.State.Pid}, nil
}

// readmit opens the networks of containers that are adopted, which are endpoints there already. What fails
// is found by bind.
func (e *Executor) readmit(ctx context.Context, adopted []*warm) {
	type place struct{ base, profile string }
	endpoints := map[place][]Endpoint{}
	var mu sync.Mutex
	atOnce(adopted, func(w *warm) {
		if w.spec.Egress.Profile == "" {
			return
		}
		endpoint, err := e.endpoint(ctx, w)
		if err != nil {
			return
		}
		w.addr = endpoint.Addr
		at := place{w.spec.Platform.Network, w.spec.Egress.Profile}
		mu.Lock()
		defer mu.Unlock()
		endpoints[at] = append(endpoints[at], endpoint)
	})
	for at, list := range endpoints {
		if _, err := e.network(ctx, at.base, at.profile, list); err != nil {
			e.cfg.Log.Warn().Err(err).Str("profile", at.profile).Msg("cannot open the network of adopted containers")
		}
	}
}
