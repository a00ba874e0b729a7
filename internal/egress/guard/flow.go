package guard

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/egress/sockopt"
)

// flow is one connection of a client.
type flow struct {
	guard *Guard
	who   Client
	state *clientState // once the flow has been admitted
	port  uint16
	to    netip.Addr // that the client dialled
	// plain says that its HTTP is parsed here: it came to the HTTP port, or is read.
	plain bool
	read  atomic.Pointer[reading] // once its TLS is ended here; nil for most
	// buffers is how many bytes the kernel may hold for the flow's sockets.
	buffers int
	kept    bufferCount
	// name is what the flow has asked for, until that has been answered; nil while it asks for
	// nothing.
	name atomic.Pointer[string]
	owned
}

// enter counts the flow. It reports false if the connection must end now.
func (f *flow) enter(life context.Context, c *net.TCPConn) bool {
	g := f.guard
	if !f.reserve() {
		f.decide("", &refusal{verdict: decisions.Limited, reason: reasonSockets})
		return false
	}
	switch g.clients.enter(life, f) {
	case revoked:
		f.release()
		return false
	case full:
		f.release()
		f.decide("", &refusal{verdict: decisions.Limited, reason: reasonTooMany})
		return false
	}
	sockopt.Bound(c, f.buffers)
	return true
}

// asksFor reports whether the flow may go to a name. It stores the name before it decides, so that
// after a change of what is allowed either Recheck finds the name, or the decision follows the
// change.
func (f *flow) asksFor(name string) bool {
	f.name.Store(&name)
	return f.who.Allows(name)
}

// resolve finds the addresses of an allowed name. It blocks.
func (f *flow) resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	if addrs, known := f.who.Known(name); known {
		return addrs, nil
	}
	ctx, cancel := context.WithTimeout(ctx, f.guard.cfg.Limits.ResolveTimeout)
	defer cancel()
	return f.who.Resolve(ctx, name)
}

// mayConnect reports whether the flow may connect to an address, which must be unmapped. Only IPv4
// may be, as the flow is.
func (f *flow) mayConnect(addr netip.Addr) bool {
	return addr.Is4() && f.who.MayConnect(addr)
}

// unreachable returns why an address could not be connected to.
func unreachable() *refusal {
	return &refusal{verdict: decisions.Failed, reason: reasonUnreachable}
}

// unconnected returns why none of a name's addresses could be connected to, as long as none has
// been tried.
func unconnected(addrs []netip.Addr, err error) *refusal {
	if err != nil || len(addrs) == 0 {
		return &refusal{verdict: decisions.Failed, reason: reasonUnresolved}
	}
	return &refusal{verdict: decisions.Denied, reason: reasonNotPublic}
}
