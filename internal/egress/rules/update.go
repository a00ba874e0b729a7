package rules

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/mdlayher/netlink"
)

// Add lets a container use an address, before the container is started. If another container had
// the address, Forget must have been called. Adding an address again is no error.
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

// Bind lets a started container send from its address through its port of the bridge; until then it
// reaches nothing. It replaces an earlier binding of the container. The error is
// errdefs.ErrNotFound if the address was not added. Bind before anything of a tenant runs in the
// container: the bridge passes ARP between two ports that are both unbound.
func (t *Table) Bind(item Binding) error {
	if err := item.validate(t.cfg); err != nil {
		return fmt.Errorf("cannot bind: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	failed := func(err error) error {
		return fmt.Errorf("cannot bind %q to %v: %w", item.Veth, item.Addr, err)
	}
	if err := t.ready(); err != nil {
		return failed(err)
	}
	if _, known := t.want.members[item.Addr]; !known {
		return failed(fmt.Errorf("no container was added with that address: %w",
			errdefs.ErrNotFound))
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

// Remove cuts the container with that address off at once, with all its flows. An address that is
// not there is no error. Forget must be called before the address is used again.
func (t *Table) Remove(addr netip.Addr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	failed := func(err error) error {
		return fmt.Errorf("cannot remove container %v: %w", addr, err)
	}
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

// Exclude takes further IPv4 prefixes from what all containers reach, and ends their flows to there.
func (t *Table) Exclude(prefixes []netip.Prefix) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	failed := func(err error) error { return fmt.Errorf("cannot exclude %v: %w", prefixes, err) }
	if err := t.ready(); err != nil {
		return failed(err)
	}
	next := *t.want
	for _, p := range prefixes {
		if !slices.Contains(next.excluded, p) {
			next.excluded = append(slices.Clip(next.excluded), p)
		}
	}
	if len(next.excluded) == len(t.want.excluded) {
		return nil
	}
	if err := t.replace(&next); err != nil {
		return failed(err)
	}
	return nil
}

// Forget deletes what connection tracking has of an address whose container was removed. The kernel
// looks through all that it tracks, which takes a millisecond on a large host; the rules can be
// changed meanwhile.
func (t *Table) Forget(addr netip.Addr) error {
	if err := t.track(func(sock *netlink.Conn) error { return forget(sock, addr) }); err != nil {
		return fmt.Errorf("the flows of %v are cut off but still tracked: %w", addr, err)
	}
	return nil
}

// ForgetStrangers deletes what the kernel tracks of bridge addresses that have no container: an
// earlier service may have ended between Remove and Forget. It lists all flows of the host.
func (t *Table) ForgetStrangers() error {
	t.mu.Lock()
	err := t.ready()
	var known map[netip.Addr]struct{}
	if err == nil {
		known = maps.Clone(t.want.members)
	}
	t.mu.Unlock()
	if err != nil {
		return fmt.Errorf("cannot forget the flows of removed containers: %w", err)
	}
	err = t.track(func(sock *netlink.Conn) error {
		entries, err := flows(sock, nil, func(addr netip.Addr) bool {
			_, is := known[addr]
			_, ours := t.cfg.bridgeOf(addr)
			return !is && ours == nil
		})
		return errors.Join(err, deleteFlows(sock, entries))
	})
	if err != nil {
		return fmt.Errorf("flows of removed containers are still tracked: %w", err)
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
