package egress

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/egress/guard"
)

// guarded implements guard.Network, and endpoint implements guard.Client.
type guarded struct {
	*stack
	life context.Context // ends with the stack
}

// Client returns the container that has an address.
func (g guarded) Client(addr netip.Addr) (guard.Client, bool) {
	ep := g.endpoints.served(addr)
	return ep, ep != nil
}

// Relay carries a connection to an address that is allowed whatever the name.
func (g guarded) Relay(c *net.TCPConn, port uint16) {
	g.work.Go(func() { g.relay(g.life, c, port) })
}

// Decided keeps a verdict.
func (g guarded) Decided(d decisions.Decision) { g.owner.cfg.Decisions.Add(d) }

// ID returns the container's name.
func (ep *endpoint) ID() string { return ep.container }

// User returns the container's user.
func (ep *endpoint) User() string { return ep.user }

// Field returns where the names that it may reach are listed: a persistent sandbox has E2B's words,
// and the settings files of the wrapper have the API's.
func (ep *endpoint) Field() string { return ep.field }

// Secrets returns the names of the container's credentials, for as long as it runs.
func (ep *endpoint) Secrets() []string { return ep.secrets }

// Done is closed when the container is removed.
func (ep *endpoint) Done() <-chan struct{} { return ep.done }

// Allows reports whether the container may connect to a name.
func (ep *endpoint) Allows(name string) bool { return ep.dns.Allows(name) }

// Known returns the addresses of a name that the DNS filter knows.
func (ep *endpoint) Known(name string) ([]netip.Addr, bool) { return ep.stack.dns.Known(name) }

// Resolve finds the addresses of a name through the DNS filter.
func (ep *endpoint) Resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	return ep.stack.dns.Resolve(ctx, ep.dns, name)
}

// MayConnect reports whether the network's containers may connect to an address now.
func (ep *endpoint) MayConnect(addr netip.Addr) bool {
	return ep.stack.admits.Admits(addr) && ep.stack.endpoints.passing()
}

// Direct reports whether the container may connect to an address whatever the name.
func (ep *endpoint) Direct(addr netip.Addr) bool { return ep.reach.Load().allows("", addr) }

// Asked returns the name under which the container got an address, the latest if there are several,
// or else the address.
func (ep *endpoint) Asked(addr netip.Addr) string {
	if names := ep.answers.namesOf(addr, time.Now()); len(names) > 0 {
		return names[0]
	}
	return addr.String()
}
