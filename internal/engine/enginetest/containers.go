package enginetest

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/engine"
)

// Create implements engine.Engine.
func (e *Engine) Create(ctx context.Context, s engine.Spec) (id string, err error) {
	made := engine.Container{Name: s.Name, State: specs.StateCreated, Labels: s.Labels}
	for _, m := range s.Mounts {
		if m.Type == engine.Bind || m.Type == engine.VolumeType {
			made.Mounts = append(made.Mounts, m)
		}
	}
	if s.Net != nil {
		made.Endpoints = []engine.Endpoint{{Network: s.Net.Network, Addr: s.Net.Addr}}
	}
	call := Call{Verb: "Create", Name: s.Name, Container: made}
	return run(ctx, e, call, func() (string, error) {
		e.mu.Lock()
		taken := e.isTaken(s.Name)
		for _, v := range s.Volumes {
			if _, there := e.volumes[v.Name]; !there && !taken {
				v.Dir = "/volumes/" + v.Name
				e.volumes[v.Name] = v
			}
		}
		e.mu.Unlock()
		if taken {
			return "", fmt.Errorf("the container name is already in use: %w", cerrdefs.ErrConflict)
		}
		id := e.Add(made)
		e.mu.Lock()
		defer e.mu.Unlock()
		c := e.containers[id]
		c.Endpoints = withoutAddresses(c.Endpoints)
		call.Container = c.Container
		e.calls = append(e.calls, call)
		return id, nil
	})
}

// isTaken reports whether a container has a name; e.mu is held.
func (e *Engine) isTaken(name string) bool {
	return name != "" && e.names[name] != nil
}

func withoutAddresses(endpoints []engine.Endpoint) (cleared []engine.Endpoint) {
	for _, at := range endpoints {
		cleared = append(cleared, engine.Endpoint{Network: at.Network})
	}
	return cleared
}

// all returns the containers; e.mu is held.
func (e *Engine) all() (list []*container) {
	for _, c := range e.containers {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *container) int { return strings.Compare(a.ID, b.ID) })
	return list
}

// Start implements engine.Engine.
func (e *Engine) Start(ctx context.Context, id string) error {
	return e.change(ctx, Call{Verb: "Start", Name: id}, func(c *container) (bool, error) {
		if c.Runs() {
			return false, nil
		}
		if err := e.mayConnect(c); err != nil {
			return false, err
		}
		c.State, c.PID, c.Started, c.killed = specs.StateRunning, os.Getpid(), time.Now(), false
		c.Ended, c.ExitCode, c.OOMKilled = time.Time{}, 0, false
		if c.ended = make(chan struct{}); c.begins() {
			close(c.begun)
		}
		c.Endpoints = slices.Clone(c.wanted)
		for i := range c.Endpoints {
			if at := &c.Endpoints[i]; at.MAC == nil && at.Addr.Is4() {
				octets := at.Addr.As4()
				at.MAC = append(net.HardwareAddr{2, 66}, octets[:]...)
			}
		}
		return true, nil
	})
}

// mayConnect reports why a container cannot be put on its networks; e.mu is held.
func (e *Engine) mayConnect(c *container) error {
	for _, at := range c.wanted {
		n, there := e.networks[at.Network]
		taken := func(other *container) bool {
			return other.Runs() && slices.ContainsFunc(other.Endpoints,
				func(has engine.Endpoint) bool {
					return has.Network == at.Network && has.Addr == at.Addr
				})
		}
		switch {
		case !there:
			return fmt.Errorf("network %s not found: %w", at.Network, cerrdefs.ErrNotFound)
		case !n.Subnet.Contains(at.Addr):
			return fmt.Errorf("no subnet of network %s has the address %s: %w", at.Network, at.Addr,
				cerrdefs.ErrInvalidArgument)
		case slices.ContainsFunc(e.all(), taken):
			return fmt.Errorf("network %s: %s: %w", at.Network, at.Addr, engine.ErrAddressTaken)
		}
	}
	return nil
}

// begins reports whether the container has not run before.
func (c *container) begins() bool {
	select {
	case <-c.begun:
		return false
	default:
		return true
	}
}

// end has a container's processes end; e.mu is held.
func (e *Engine) end(c *container, exitCode int, outOfMemory bool) {
	if c.State == engine.Paused {
		close(c.resumed)
	}
	c.State, c.PID, c.Ended = specs.StateStopped, 0, time.Now()
	c.ExitCode, c.OOMKilled = exitCode, outOfMemory
	for range c.Endpoints { // Docker may tell that before, or after
		e.tell(engine.Event{Kind: engine.Disconnected, Container: c.ID})
	}
	c.Endpoints = withoutAddresses(c.Endpoints)
	close(c.ended)
	e.tell(engine.Event{Kind: engine.Ended, Container: c.ID, Labels: c.Labels})
}

// drop ends and removes a container; e.mu is held.
func (e *Engine) drop(c *container) {
	if c.Runs() {
		e.end(c, 128+int(syscall.SIGKILL), false)
	}
	delete(e.containers, c.ID)
	e.unindex(c)
	close(c.gone)
	e.tell(engine.Event{Kind: engine.Removed, Container: c.ID, Labels: c.Labels})
}

// Signal implements engine.Engine. SIGKILL ends a container, when it is resumed if it is paused;
// what other signals do is the script's.
func (e *Engine) Signal(ctx context.Context, id string, number syscall.Signal) error {
	call := Call{Verb: "Signal", Name: id, Signal: number}
	return e.change(ctx, call, func(c *container) (bool, error) {
		switch {
		case !c.Runs():
			return false, fmt.Errorf("the container does not run: %w", cerrdefs.ErrConflict)
		case number == syscall.SIGKILL && c.State == engine.Paused:
			c.killed = true
		case number == syscall.SIGKILL:
			e.end(c, 128+int(number), false)
		}
		return true, nil
	})
}

// Wait implements engine.Engine.
func (e *Engine) Wait(ctx context.Context, id string) <-chan error {
	told := make(chan error, 1)
	go func() {
		_, err := run(ctx, e, Call{Verb: "Wait", Name: id}, func() (struct{}, error) {
			e.mu.Lock()
			c, err := e.find(id)
			if err != nil {
				e.mu.Unlock()
				return struct{}{}, err
			}
			ended := c.ended
			e.mu.Unlock()
			select {
			case <-ended:
			case <-ctx.Done():
				return struct{}{}, ctx.Err()
			}
			return struct{}{}, nil
		})
		told <- err
	}()
	return told
}

// Pause implements engine.Engine.
func (e *Engine) Pause(ctx context.Context, id string) error {
	ctx = context.WithoutCancel(ctx)
	err := e.change(ctx, Call{Verb: "Pause", Name: id}, func(c *container) (bool, error) {
		if c.State != specs.StateRunning {
			return false, nil
		}
		c.State, c.resumed = engine.Paused, make(chan struct{})
		return true, nil
	})
	return unlessGone(err)
}

// Resume implements engine.Engine.
func (e *Engine) Resume(ctx context.Context, id string) error {
	err := e.change(ctx, Call{Verb: "Resume", Name: id}, func(c *container) (bool, error) {
		if c.State != engine.Paused {
			return false, nil
		}
		if c.killed {
			e.end(c, 128+int(syscall.SIGKILL), false)
			return true, nil
		}
		c.State = specs.StateRunning
		close(c.resumed)
		e.tell(engine.Event{Kind: engine.Resumed, Container: c.ID, Labels: c.Labels})
		return true, nil
	})
	return unlessGone(err)
}

// Remove implements engine.Engine.
func (e *Engine) Remove(ctx context.Context, id string) error {
	err := e.change(ctx, Call{Verb: "Remove", Name: id}, func(c *container) (bool, error) {
		e.drop(c)
		return true, nil
	})
	return unlessGone(err)
}

// Rename implements engine.Engine.
func (e *Engine) Rename(ctx context.Context, id, name string) error {
	return e.change(ctx, Call{Verb: "Rename", Name: id}, func(c *container) (bool, error) {
		if e.isTaken(name) {
			return false, fmt.Errorf("the name %s is taken: %w", name, cerrdefs.ErrConflict)
		}
		e.unindex(c)
		c.Name = name
		e.index(c)
		return true, nil
	})
}

func unlessGone(err error) error {
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// Inspect implements engine.Engine.
func (e *Engine) Inspect(ctx context.Context, id string) (engine.Container, error) {
	return run(ctx, e, Call{Verb: "Inspect", Name: id}, func() (engine.Container, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, c := range e.all() {
			if c.ID == id || c.Name == id {
				return c.Container, nil
			}
		}
		_, err := e.find(id)
		return engine.Container{}, err
	})
}

// List implements engine.Engine.
func (e *Engine) List(
	ctx context.Context, stopped bool, labels ...string,
) ([]engine.Container, error) {
	return run(ctx, e, Call{Verb: "List", Labels: labels}, func() ([]engine.Container, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		var list []engine.Container
		for _, c := range e.all() {
			if (stopped || c.Runs()) && matches(c.Labels, labels) {
				list = append(list, engine.Container{
					ID: c.ID, Name: c.Name, State: c.State, Labels: c.Labels,
					Mounts: c.Mounts, Endpoints: c.Endpoints,
				})
			}
		}
		return list, nil
	})
}

// matches reports whether there are all of the wanted labels, each "key" or "key=value".
func matches(labels map[string]string, wanted []string) bool {
	for _, want := range wanted {
		key, value, exact := strings.Cut(want, "=")
		if got, there := labels[key]; !there || exact && got != value {
			return false
		}
	}
	return true
}

// Usage implements engine.Engine. Containers use nothing.
func (e *Engine) Usage(ctx context.Context, id string) (cgroup.Usage, error) {
	return run(ctx, e, Call{Verb: "Usage", Name: id}, func() (cgroup.Usage, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		_, err := e.find(id)
		return cgroup.Usage{At: time.Now()}, err
	})
}
