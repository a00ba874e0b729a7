package guard

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
)

// connect resolves an allowed name for the connection's client and connects to the first of its addresses
// that answers. The socket belongs to w. The error is a refusal.
func (w *web) connect(ctx context.Context, name string) (*originConn, *refusal) {
	addrs, err := w.resolve(ctx, name)
	last := unconnected(addrs, err)
	if err != nil {
		return nil, last
	}
	most := w.guard.cfg.Limits
	ctx, cancel := context.WithTimeout(ctx, most.ConnectTotal)
	defer cancel()
	dialer := net.Dialer{Timeout: most.ConnectTimeout, KeepAliveConfig: keepAlive, Control: w.prepare}
	for _, addr := range addrs {
		addr = addr.Unmap()
		if !w.mayConnect(addr) {
			continue
		}
		c, refused := w.connectTo(ctx, &dialer, netip.AddrPortFrom(addr, w.port))
		if refused == nil {
			return c, nil
		}
		last = refused
		if ctx.Err() != nil {
			break
		}
	}
	return nil, last
}

// connectTo connects to an address, never to a name: nothing is resolved again between the check and this.
func (w *web) connectTo(ctx context.Context, dialer *net.Dialer, to netip.AddrPort) (_ *originConn, refused *refusal) {
	user := w.client.User()
	if refused := w.guard.takeSocket(user, to); refused != nil {
		return nil, refused
	}
	defer func() {
		if refused != nil {
			w.guard.giveSocket(user, to, false)
		}
	}()
	c, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, unreachable(err)
	}
	tcp := c.(*net.TCPConn)
	raw, err := tcp.SyscallConn()
	if err != nil || !w.own(tcp) {
		reset(tcp)
		return nil, unreachable(errors.Join(err, context.Canceled))
	}
	return &originConn{socket: newSocket(tcp, raw, w), to: to}, nil
}

func (w *web) prepare(_, _ string, socket syscall.RawConn) error {
	return socket.Control(func(fd uintptr) {
		speakFirst(int(fd))
		boundOrigin(int(fd), w.buffers)
	})
}
