package enginetest

import (
	"context"
	"fmt"
	"slices"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/engine"
)

// AddNetwork puts a network there, or changes it. Its Fault and InUse are what FindNetwork says.
func (e *Engine) AddNetwork(n engine.Network) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n.ID == "" {
		n.ID = "network-" + n.Name
	}
	e.networks[n.Name] = n
}

// FindNetwork implements engine.Engine.
func (e *Engine) FindNetwork(ctx context.Context, name, bridge string) (engine.Network, error) {
	return run(ctx, e, Call{Verb: "FindNetwork", Name: name}, func() (engine.Network, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		n, there := e.networks[name]
		if !there {
			return n, fmt.Errorf("no such network: %s: %w", name, cerrdefs.ErrNotFound)
		}
		n.InUse = n.InUse || e.isUsed(name)
		if n.Bridge != bridge && n.Fault == "" {
			n.Fault = fmt.Sprintf("has the bridge %q, not %q", n.Bridge, bridge)
		}
		return n, nil
	})
}

// isUsed reports whether a running container is on a network; e.mu is held.
func (e *Engine) isUsed(network string) bool {
	return slices.ContainsFunc(e.all(), func(c *container) bool {
		return c.Runs() && slices.ContainsFunc(c.Endpoints, func(at engine.Endpoint) bool {
			return at.Network == network
		})
	})
}

// MakeNetwork implements engine.Engine.
func (e *Engine) MakeNetwork(ctx context.Context, n engine.Network) error {
	call := Call{Verb: "MakeNetwork", Name: n.Name}
	_, err := run(ctx, e, call, func() (struct{}, error) {
		e.mu.Lock()
		if _, taken := e.networks[n.Name]; taken {
			e.mu.Unlock()
			return struct{}{}, fmt.Errorf("there is a network %s: %w", n.Name, cerrdefs.ErrConflict)
		}
		for _, other := range e.networks {
			if other.Subnet.Overlaps(n.Subnet) {
				e.mu.Unlock()
				return struct{}{}, fmt.Errorf("network %s: %w", other.Name, engine.ErrSubnetTaken)
			}
		}
		e.calls = append(e.calls, call)
		e.mu.Unlock()
		e.AddNetwork(n)
		return struct{}{}, nil
	})
	return err
}

// RemoveNetwork implements engine.Engine.
func (e *Engine) RemoveNetwork(ctx context.Context, name string) error {
	call := Call{Verb: "RemoveNetwork", Name: name}
	_, err := run(ctx, e, call, func() (struct{}, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		for key, n := range e.networks {
			if n.Name != name && n.ID != name {
				continue
			}
			if n.InUse || e.isUsed(n.Name) {
				return struct{}{}, fmt.Errorf("it has containers: %w", cerrdefs.ErrPermissionDenied)
			}
			delete(e.networks, key)
			e.calls = append(e.calls, call)
			return struct{}{}, nil
		}
		return struct{}{}, fmt.Errorf("no such network: %s: %w", name, cerrdefs.ErrNotFound)
	})
	return err
}

// ListNetworks implements engine.Engine.
func (e *Engine) ListNetworks(ctx context.Context, label string) ([]engine.Network, error) {
	call := Call{Verb: "ListNetworks", Labels: []string{label}}
	return run(ctx, e, call, func() (list []engine.Network, err error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, n := range e.networks {
			if matches(n.Labels, []string{label}) {
				list = append(list, engine.Network{ID: n.ID, Name: n.Name, Labels: n.Labels})
			}
		}
		return list, nil
	})
}

// FindVolume implements engine.Engine.
func (e *Engine) FindVolume(ctx context.Context, name string) (engine.Volume, error) {
	return run(ctx, e, Call{Verb: "FindVolume", Name: name}, func() (engine.Volume, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		v, there := e.volumes[name]
		if !there {
			return v, fmt.Errorf("no such volume: %s: %w", name, cerrdefs.ErrNotFound)
		}
		return v, nil
	})
}

// RemoveVolume implements engine.Engine.
func (e *Engine) RemoveVolume(ctx context.Context, name string) error {
	call := Call{Verb: "RemoveVolume", Name: name}
	_, err := run(ctx, e, call, func() (struct{}, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		switch _, there := e.volumes[name]; {
		case !there:
			return struct{}{}, fmt.Errorf("no such volume: %s: %w", name, cerrdefs.ErrNotFound)
		case e.isMounted(name):
			return struct{}{}, fmt.Errorf("the volume is in use: %w", cerrdefs.ErrConflict)
		}
		delete(e.volumes, name)
		e.calls = append(e.calls, call)
		return struct{}{}, nil
	})
	return err
}

// isMounted reports whether a container has a volume; e.mu is held.
func (e *Engine) isMounted(volume string) bool { return len(e.mounts[volume]) > 0 }

// ListVolumes implements engine.Engine.
func (e *Engine) ListVolumes(
	ctx context.Context, label string, unused bool,
) ([]engine.Volume, error) {
	call := Call{Verb: "ListVolumes", Labels: []string{label}}
	return run(ctx, e, call, func() (list []engine.Volume, err error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, v := range e.volumes {
			if matches(v.Labels, []string{label}) && (!unused || !e.isMounted(v.Name)) {
				list = append(list, engine.Volume{Name: v.Name, Labels: v.Labels})
			}
		}
		return list, nil
	})
}
