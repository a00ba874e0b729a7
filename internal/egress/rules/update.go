package rules

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/containerd/errdefs"
)

// Add lets a container's address be used, before the container is started. One that was another's must have
// been forgotten. One that is there is no error.
func (t *Table) Add(addr netip.Addr) error {
	if _, err := t.cfg.bridgeOf(addr); err != nil {
		return fmt.Errorf("cannot add container: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ready(); err != nil {
		return fmt.Errorf("cannot add container %v: %w", addr, err)
	}
	if _, taken := t.want.members[addr]; taken {
		return nil
	}
	var e elements
	e.addContainer(t.cfg, addr)
	if err := t.send(additions(t.cfg, e)); err != nil {
		return fmt.Errorf("cannot add container %v: %w", addr, err)
	}
	t.want.members[addr] = struct{}{}
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
	if _, known := t.want.members[item.Addr]; !known {
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
	if _, known := t.want.members[addr]; !known {
		return nil
	}
	var e elements
	e.addContainer(t.cfg, addr)
	if item, bound := t.want.bound[addr]; bound {
		e.addBinding(item)
	}
	if err := t.send(removals(t.cfg, e)); err != nil {
		return failed(err)
	}
	delete(t.want.members, addr)
	delete(t.want.bound, addr)
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
	var known map[netip.Addr]struct{}
	if err == nil {
		known = maps.Clone(t.want.members)
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

func (t *Table) ready() error {
	if t.wire == nil {
		return errors.New("the table is closed")
	}
	if t.want == nil {
		return errors.New("no rules have been applied yet")
	}
	return nil
}
