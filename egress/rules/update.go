package rules

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/containerd/errdefs"
)

// maxTargets bounds what one container can make us hold by having names resolved.
const maxTargets = 1024

// Add lets a container's address be used, before the container is started. One that was another's must have
// been forgotten. An address that has a container already is errdefs.ErrAlreadyExists unless the
// container is the same.
func (t *Table) Add(item Container) error {
	if err := item.validate(t.cfg); err != nil {
		return fmt.Errorf("cannot add container: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ready(); err != nil {
		return fmt.Errorf("cannot add container %v: %w", item.Addr, err)
	}
	if mode, taken := t.want.modes[item.Addr]; taken && mode != item.Mode {
		return fmt.Errorf("cannot add container %v: it is there as %v, remove it first: %w", item.Addr, mode, errdefs.ErrAlreadyExists)
	} else if taken {
		return nil
	}
	var e elements
	e.addContainer(t.cfg, item)
	if err := t.send(additions(t.cfg, e)); err != nil {
		return fmt.Errorf("cannot add container %v: %w", item.Addr, err)
	}
	t.want.modes[item.Addr] = item.Mode
	return nil
}

// Bind opens the host's end of a container's interface for that container's addresses, after it was
// started; until then the container reaches nothing. A binding that the container had before is replaced.
// errdefs.ErrNotFound: no container was added with that address. Bind before anything of a tenant runs in
// the container: of two ports on one bridge that are both unbound, the bridge passes ARP between them.
func (t *Table) Bind(item Binding) error {
	if err := item.validate(t.cfg); err != nil {
		return fmt.Errorf("cannot bind: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	failed := func(err error) error { return fmt.Errorf("cannot bind %q to %v: %w", item.Veth, item.Addr, err) }
	if err := t.ready(); err != nil {
		return failed(err)
	}
	if _, known := t.want.modes[item.Addr]; !known {
		return failed(fmt.Errorf("no container was added with that address: %w", errdefs.ErrNotFound))
	}
	for addr, other := range t.want.bound {
		if other.Veth == item.Veth && addr != item.Addr {
			return failed(fmt.Errorf("it is bound to %v: %w", addr, errdefs.ErrAlreadyExists))
		}
	}
	bridge := t.cfg.mustBridgeOf(item.Addr).Name
	if err := t.wire.refuseLinkLocalLearning(bridge); err != nil {
		return failed(fmt.Errorf("bridge %q: %w", bridge, err))
	}
	if err := t.wire.isPortOf(item.Veth, bridge); err != nil {
		return failed(err)
	}
	var before, after elements
	if old, bound := t.want.bound[item.Addr]; bound {
		before.addBinding(old)
	}
	after.addBinding(item)
	if err := t.send(removals(t.cfg, before).then(additions(t.cfg, after))); err != nil {
		return failed(err)
	}
	t.want.bound[item.Addr] = cloned(item)
	return nil
}

// Remove cuts off, at once, what the container with that address has going. One that is not there is no
// error. Before the address is another's, Forget must have been called.
func (t *Table) Remove(addr netip.Addr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	failed := func(err error) error { return fmt.Errorf("cannot remove container %v: %w", addr, err) }
	if err := t.ready(); err != nil {
		return failed(err)
	}
	mode, known := t.want.modes[addr]
	if !known {
		return nil
	}
	var e elements
	e.addContainer(t.cfg, Container{addr, mode})
	if item, bound := t.want.bound[addr]; bound {
		e.addBinding(item)
	}
	for to := range t.want.flows[addr] {
		e.addFlow(addr, to, flowIdle)
	}
	if err := t.send(removals(t.cfg, e)); err != nil {
		return failed(err)
	}
	delete(t.want.modes, addr)
	delete(t.want.bound, addr)
	delete(t.want.flows, addr)
	return nil
}

// Forget deletes what the kernel still tracks of an address whose container was removed, and which until then
// could have made more. It takes as long as the kernel needs to look through all that it tracks, a millisecond
// on a large host; the rules can be changed meanwhile.
func (t *Table) Forget(addr netip.Addr) error {
	if err := t.tracks.forget(addr); err != nil {
		return fmt.Errorf("the flows of %v are cut off but still tracked: %w", addr, err)
	}
	return nil
}

// ForgetStrangers deletes what the kernel tracks of addresses of the bridges that have no container: an earlier
// service may have ended between Remove and Forget. It lists all flows of the host.
func (t *Table) ForgetStrangers() error {
	t.mu.Lock()
	err := t.ready()
	var known map[netip.Addr]Mode
	if err == nil {
		known = maps.Clone(t.want.modes)
	}
	t.mu.Unlock()
	if err != nil {
		return fmt.Errorf("cannot forget who has gone: %w", err)
	}
	err = t.tracks.forgetAll(func(addr netip.Addr) bool {
		_, is := known[addr]
		_, ours := t.cfg.bridgeOf(addr)
		return !is && ours == nil
	})
	if err != nil {
		return fmt.Errorf("flows of containers that have gone are still tracked: %w", err)
	}
	return nil
}

// Allow lets a filtered container reach an address and TCP port beyond 80 and 443, for ttl (at most an
// hour) from now. A connection made in that time may go on, and opens another hour with each packet.
// errdefs.ErrNotFound: no filtered container has that address; errdefs.ErrResourceExhausted: it has 1024.
func (t *Table) Allow(addr, dst netip.Addr, port uint16, ttl time.Duration) error {
	failed := func(err error) error { return fmt.Errorf("cannot open port %d of %v to %v: %w", port, dst, addr, err) }
	if !dst.Is4() || port == 0 || ttl < time.Millisecond {
		return failed(fmt.Errorf("want an IPv4 address, a port and a time to live: %w", errdefs.ErrInvalidArgument))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ready(); err != nil {
		return failed(err)
	}
	if t.want.modes[addr] != Filtered {
		return failed(fmt.Errorf("no filtered container has that address: %w", errdefs.ErrNotFound))
	}
	to, targets := target{dst, port}, t.want.flows[addr]
	if _, again := targets[to]; !again && len(targets) >= maxTargets {
		return failed(fmt.Errorf("it has %d open already: %w", maxTargets, errdefs.ErrResourceExhausted))
	}
	ttl = min(ttl, flowIdle)
	var e elements
	e.addFlow(addr, to, ttl)
	// An element that is there would keep its old time: it is taken out and put in again.
	if err := t.send(removals(t.cfg, e).then(additions(t.cfg, e))); err != nil {
		return failed(err)
	}
	if targets == nil {
		targets = map[target]time.Time{}
		t.want.flows[addr] = targets
	}
	targets[to] = time.Now().Add(ttl)
	return nil
}

func (t *Table) ready() error {
	if t.wire == nil {
		return errors.New("the table is closed")
	}
	if t.want == nil {
		return errors.New("no rules have been applied yet")
	}
	return nil
}
