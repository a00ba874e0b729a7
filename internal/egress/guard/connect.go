package guard

import (
	"context"
	"net"
	"net/netip"
	"syscall"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/egress/sockopt"
)

// connect resolves an allowed name for the flow's client and connects to the first of its addresses
// that answers. The socket belongs to f, and what it takes of budgets is given back by giveSocket.
func (f *flow) connect(ctx context.Context, name string) (*net.TCPConn, netip.AddrPort, *refusal) {
	addrs, err := f.resolve(ctx, name)
	last := unconnected(addrs, err)
	if err != nil {
		return nil, netip.AddrPort{}, last
	}
	limits := f.guard.cfg.Limits
	ctx, cancel := context.WithTimeout(ctx, limits.ConnectTotal)
	defer cancel()
	dialer := net.Dialer{Timeout: limits.ConnectTimeout, KeepAliveConfig: sockopt.KeepAlive,
		Control: f.prepare}
	for _, addr := range addrs {
		addr = addr.Unmap()
		if !f.mayConnect(addr) {
			continue
		}
		to := netip.AddrPortFrom(addr, f.port)
		c, refused := f.connectTo(ctx, &dialer, to)
		if refused == nil {
			return c, to, nil
		}
		last = refused
		if ctx.Err() != nil {
			break
		}
	}
	return nil, netip.AddrPort{}, last
}

// connectTo connects to an address, never to a name: nothing is resolved again between the check
// and this.
func (f *flow) connectTo(ctx context.Context, dialer *net.Dialer,
	to netip.AddrPort) (_ *net.TCPConn, refused *refusal) {
	if refused := f.takeSocket(to); refused != nil {
		return nil, refused
	}
	c, err := dialer.DialContext(ctx, "tcp4", to.String())
	if err == nil && f.own(c.(*net.TCPConn)) {
		return c.(*net.TCPConn), nil
	}
	f.giveSocket(to, false)
	return nil, unreachable()
}

func (f *flow) prepare(_, _ string, socket syscall.RawConn) error {
	return socket.Control(func(fd uintptr) {
		sockopt.DelayAck(int(fd))
		sockopt.BoundOrigin(int(fd), f.buffers)
	})
}

// takeSocket takes what a connection to an origin needs from its user's budgets. For TLS it has its
// descriptor already.
func (f *flow) takeSocket(to netip.AddrPort) *refusal {
	b, user := f.guard.cfg.Budget, f.who.User()
	if f.plain && !b.Descriptors.Take(user, 1) {
		return &refusal{verdict: decisions.Limited, reason: reasonSockets}
	}
	if !b.Ports.Take(user, to) {
		if f.plain {
			b.Descriptors.Give(user, 1)
		}
		return &refusal{verdict: decisions.Limited, reason: reasonPorts}
	}
	return nil
}

// giveSocket gives that back; kept says that the kernel keeps the port.
func (f *flow) giveSocket(to netip.AddrPort, kept bool) {
	b, user := f.guard.cfg.Budget, f.who.User()
	if f.plain {
		b.Descriptors.Give(user, 1)
	}
	b.Ports.Give(user, to, kept)
}
