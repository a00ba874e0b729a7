package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dnsfilter"
	"github.com/daycare-run/sandbox/dockerexec/networks"
	"github.com/daycare-run/sandbox/internal/policy"
)

// endpoint is a container on a network. It is revoked when it is removed or replaced.
type endpoint struct {
	stack           *stack // the network
	user, container string
	field           string
	secrets         []string // names of its credentials
	holder          uint64
	addr            netip.Addr
	open            bool // may reach all of the internet; the others are filtered
	draining        bool // was open, and may have flows left or no gateway yet; guarded by stack.changing
	answers         answers
	relays          relays
	binding         binding
	reach           atomic.Pointer[reach] // used where it is filtered
	dns             *dnsfilter.Client
	done            chan struct{}
	revoke          func() // closes done
}

// binding is held while a container is bound, while how it is connected is changed, and while it is
// cut off, after which it is never bound. An endpoint has that of the one that it replaces.
type binding chan struct{}

func (b binding) lock()   { b <- struct{}{} }
func (b binding) unlock() { <-b }

// reach is what a filtered container may reach: names, and addresses whatever the name.
type reach struct {
	policy.Egress
	policy.Ranges
}

// allows reports whether addr may be reached under name or, if name is empty, whatever the name.
func (r *reach) allows(name string, addr netip.Addr) bool {
	if name == "" {
		return r.Ranges.Allows(addr)
	}
	return r.Egress.Allows(name)
}

// under returns the first of names under which addr may be reached, or none if it may be reached
// whatever the name.
func (r *reach) under(names []string, addr netip.Addr) (name string, ok bool) {
	if r.allows("", addr) {
		return "", true
	}
	i := slices.IndexFunc(names, func(name string) bool { return r.allows(name, addr) })
	if i < 0 {
		return "", false
	}
	return names[i], true
}

// newEndpoint makes an endpoint of what a Party may reach. That may have come from a container's
// labels.
func newEndpoint(party networks.Party) (*endpoint, error) {
	ep := &endpoint{user: party.User, container: party.Name, field: "allowedDomains",
		secrets: party.Egress.Secrets, binding: make(binding, 1), done: make(chan struct{})}
	if party.Persistent {
		ep.field = "allowOut"
	}
	reach := &reach{}
	var err error
	if reach.Domains, err = policy.ParseDomains(party.Egress.Domains); err != nil {
		return nil, fmt.Errorf("cannot read the names that %s may reach: %w", ep.container, err)
	}
	if reach.Denied, err = policy.ParseDenied(party.Egress.Denied); err != nil {
		return nil, fmt.Errorf("cannot read the names that %s may not reach: %w", ep.container, err)
	}
	if reach.Ranges, err = policy.ParseRanges(party.Egress.Addresses,
		party.Egress.DeniedAddresses); err != nil {
		return nil, fmt.Errorf("cannot read the addresses that %s may reach: %w", ep.container, err)
	}
	ep.open = reach.Domains.Everything()
	ep.reach.Store(reach)
	ep.dns = &dnsfilter.Client{
		ID: ep.container, User: ep.user, Open: ep.open,
		Allows: func(name string) bool { return ep.reach.Load().allows(name, netip.Addr{}) },
	}
	ep.revoke = sync.OnceFunc(func() { close(ep.done) })
	return ep, nil
}

// endpoints are the containers of a network by their addresses.
type endpoints struct {
	mayPass func() error // Config.MayPass

	subnet  netip.Prefix
	gateway netip.Addr

	mu     sync.RWMutex
	byAddr map[netip.Addr]*endpoint
	byName map[string]*endpoint // by container
	last   netip.Addr           // given out last: an address is used again as late as possible
}

func (es *endpoints) init(n networks.Network) {
	es.subnet, es.gateway, es.last = n.Subnet, n.Gateway, n.Gateway
	es.byAddr, es.byName = map[netip.Addr]*endpoint{}, map[string]*endpoint{}
}

// restore registers a container at the address that it has. It reports false if the address or the
// name is taken, or no container can have the address.
func (es *endpoints) restore(ep *endpoint, addr netip.Addr) bool {
	es.mu.Lock()
	defer es.mu.Unlock()
	if !es.usable(addr) || es.byAddr[addr] != nil || es.byName[ep.container] != nil {
		return false
	}
	ep.addr = addr
	es.byAddr[addr], es.byName[ep.container] = ep, ep
	return true
}

// register gives a container an address that is free.
func (es *endpoints) register(ep *endpoint) error {
	es.mu.Lock()
	defer es.mu.Unlock()
	if es.byName[ep.container] != nil {
		return fmt.Errorf("container %s has an address already: %w", ep.container,
			errdefs.ErrAlreadyExists)
	}
	addr := es.last
	for range 1 << (32 - es.subnet.Bits()) {
		if addr = addr.Next(); !es.subnet.Contains(addr) {
			addr = es.subnet.Addr()
		}
		if es.usable(addr) && es.byAddr[addr] == nil {
			ep.addr = addr
			es.byAddr[addr], es.byName[ep.container], es.last = ep, ep, addr
			return nil
		}
	}
	return fmt.Errorf("all addresses of %s are in use: %w", es.subnet, errdefs.ErrResourceExhausted)
}

// replace puts ep in the place of the container of that name, which must have the same holder, and
// revokes the old one.
func (es *endpoints) replace(container string, ep *endpoint) error {
	es.mu.Lock()
	defer es.mu.Unlock()
	old := es.byName[container]
	if old == nil || old.holder != ep.holder || old.gone() {
		return fmt.Errorf("%s does not have the address that %s is to get: %w", container,
			ep.container, errdefs.ErrFailedPrecondition)
	}
	if ep.container != container && es.byName[ep.container] != nil {
		return fmt.Errorf("container %s has an address already: %w", ep.container,
			errdefs.ErrAlreadyExists)
	}
	ep.addr, ep.binding = old.addr, old.binding
	delete(es.byName, container)
	es.byAddr[ep.addr], es.byName[ep.container] = ep, ep
	old.revoke()
	return nil
}

// usable reports whether a container may have an address: it is in the subnet, and not one of the
// network's own.
func (es *endpoints) usable(addr netip.Addr) bool {
	return addr.Is4() && es.subnet.Contains(addr) && es.subnet.Contains(addr.Next()) &&
		addr != es.subnet.Addr() && addr != es.gateway
}

// unregister forgets a container, whose address stays taken until release. It reports whether the
// container was registered.
func (es *endpoints) unregister(ep *endpoint) bool {
	es.mu.Lock()
	defer es.mu.Unlock()
	if es.byName[ep.container] != ep {
		return false
	}
	delete(es.byName, ep.container)
	return true
}

// release forgets a container and its address, which may be given to another one.
func (es *endpoints) release(ep *endpoint) {
	es.unregister(ep)
	es.mu.Lock()
	defer es.mu.Unlock()
	if es.byAddr[ep.addr] == ep {
		delete(es.byAddr, ep.addr)
	}
}

// lockBinding returns the container with an address, or nil, and holds its binding until unlock is
// called. Waiting for the binding, the container may have been replaced.
func (es *endpoints) lockBinding(addr netip.Addr) (ep *endpoint, unlock func()) {
	for {
		ep = es.at(addr)
		if ep == nil {
			return nil, func() {}
		}
		held := ep.binding
		held.lock()
		if ep = es.at(addr); ep != nil && ep.binding == held {
			return ep, held.unlock
		}
		held.unlock()
	}
}

// at returns the container with an address, or nil.
func (es *endpoints) at(addr netip.Addr) *endpoint {
	es.mu.RLock()
	defer es.mu.RUnlock()
	return es.byAddr[addr.Unmap()]
}

// of returns the container that a holder is now, or nil.
func (es *endpoints) of(holder uint64) *endpoint {
	es.mu.RLock()
	defer es.mu.RUnlock()
	for _, ep := range es.byName {
		if ep.holder == holder {
			return ep
		}
	}
	return nil
}

func (es *endpoints) count() int {
	es.mu.RLock()
	defer es.mu.RUnlock()
	return len(es.byAddr)
}

// served returns the container with an address, or nil if it has gone or nothing new may pass.
func (es *endpoints) served(addr netip.Addr) *endpoint {
	if ep := es.at(addr); ep != nil && !ep.gone() && es.passing() {
		return ep
	}
	return nil
}

// dnsEndpoint implements dnsfilter.Config.Client.
func (es *endpoints) dnsEndpoint(addr netip.Addr) *dnsfilter.Client {
	if ep := es.served(addr); ep != nil {
		return ep.dns
	}
	return nil
}

// passing reports whether anything new may pass now.
func (es *endpoints) passing() bool { return es.mayPass == nil || es.mayPass() == nil }

// belongsTo reports whether an address, which may be nobody's, is e's.
func (ep *endpoint) belongsTo(e networks.Endpoint) bool {
	return ep != nil && ep.holder == e.Holder && ep.container == e.Name && !ep.gone()
}

// gone reports whether the container was removed or replaced.
func (ep *endpoint) gone() bool {
	select {
	case <-ep.done:
		return true
	default:
		return false
	}
}
