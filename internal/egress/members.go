package egress

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dnsfilter"
	"github.com/daycare-run/sandbox/internal/egress/guard"
	"github.com/daycare-run/sandbox/internal/policy"
)

// member is a container on a network. What it may reach never changes; it is revoked, and another one
// takes its place. It is the guard's client.
type member struct {
	tenant Tenant
	addr   netip.Addr
	open   bool // may reach all of the internet; the others are filtered
	told   told
	asks   *dnsfilter.Client
	done   chan struct{}
	revoke func() // closes done
}

func newMember(addr netip.Addr, t Tenant, profile string) *member {
	m := &member{tenant: t, addr: addr, done: make(chan struct{})}
	reach := policy.Egress{Domains: t.Domains, Denied: t.Denied}
	m.open = reach.Mode() == policy.EgressOpen
	m.asks = &dnsfilter.Client{ID: t.Container, User: t.User, Profile: profile, Open: m.open, Allows: reach.Allows}
	m.revoke = sync.OnceFunc(func() { close(m.done) })
	return m
}

// ID is for guard.Client, as are User, Allows and Done.
func (m *member) ID() string { return m.tenant.Container }

func (m *member) User() string { return m.tenant.User }

func (m *member) Allows(name string) bool { return m.asks.Allows(name) }

func (m *member) Done() <-chan struct{} { return m.done }

// members is who has which address of a network.
type members struct {
	subnet  netip.Prefix
	gateway netip.Addr

	mu     sync.RWMutex
	byAddr map[netip.Addr]*member
	byName map[string]*member // by container
	last   netip.Addr         // given out last: an address is used again as late as possible
}

func (ms *members) init(n Network) {
	ms.subnet, ms.gateway, ms.last = n.Subnet, n.Gateway, n.Gateway
	ms.byAddr, ms.byName = map[netip.Addr]*member{}, map[string]*member{}
}

// put registers a container at the address that it has. ok is false for one that cannot be its.
func (ms *members) put(addr netip.Addr, t Tenant, profile string) (m *member, ok bool) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if !ms.usable(addr) || ms.byAddr[addr] != nil || ms.byName[t.Container] != nil {
		return nil, false
	}
	m = newMember(addr, t, profile)
	ms.byAddr[addr], ms.byName[t.Container] = m, m
	return m, true
}

// take registers a container at an address that is free.
func (ms *members) take(t Tenant, profile string) (*member, error) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.byName[t.Container] != nil {
		return nil, fmt.Errorf("container %s has an address already: %w", t.Container, errdefs.ErrAlreadyExists)
	}
	addr := ms.last
	for range 1 << (32 - ms.subnet.Bits()) {
		if addr = addr.Next(); !ms.subnet.Contains(addr) {
			addr = ms.subnet.Addr()
		}
		if ms.usable(addr) && ms.byAddr[addr] == nil {
			m := newMember(addr, t, profile)
			ms.byAddr[addr], ms.byName[t.Container], ms.last = m, m, addr
			return m, nil
		}
	}
	return nil, fmt.Errorf("all addresses of %s are in use: %w", ms.subnet, errdefs.ErrResourceExhausted)
}

// usable leaves out the network's own addresses.
func (ms *members) usable(addr netip.Addr) bool {
	return addr.Is4() && ms.subnet.Contains(addr) && ms.subnet.Contains(addr.Next()) && addr != ms.subnet.Addr() && addr != ms.gateway
}

// leave says that a container has gone, once: it is false for one that has already. Its address stays taken
// until free.
func (ms *members) leave(m *member) bool {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.byName[m.tenant.Container] != m {
		return false
	}
	delete(ms.byName, m.tenant.Container)
	return true
}

// free gives the address back of a container that has gone.
func (ms *members) free(m *member) {
	ms.leave(m)
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.byAddr[m.addr] == m {
		delete(ms.byAddr, m.addr)
	}
}

// at is nil where nobody is.
func (ms *members) at(addr netip.Addr) *member {
	ms.mu.RLock()
	defer ms.mu.RUnlock()
	return ms.byAddr[addr.Unmap()]
}

// named is nil for a container that is not there.
func (ms *members) named(container string) *member {
	ms.mu.RLock()
	defer ms.mu.RUnlock()
	return ms.byName[container]
}

func (ms *members) count() int {
	ms.mu.RLock()
	defer ms.mu.RUnlock()
	return len(ms.byAddr)
}

// asker is for dnsfilter.Config.
func (ms *members) asker(addr netip.Addr) *dnsfilter.Client {
	if m := ms.at(addr); m != nil && !m.gone() {
		return m.asks
	}
	return nil
}

// caller is for guard.Config.
func (ms *members) caller(addr netip.Addr) (guard.Client, bool) {
	if m := ms.at(addr); m != nil && !m.gone() {
		return m, true
	}
	return nil, false
}

func (m *member) gone() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}
