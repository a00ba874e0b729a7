package guard

import (
	"context"
	"net"
	"net/netip"
	"syscall"

	"github.com/daycare-run/sandbox/internal/egress/nonblock"
)

// connect resolves an allowed name for the connection's client and connects to the first of its addresses
// that answers. The socket belongs to s. The error is a refusal.
func (s *httpSession) connect(ctx context.Context, name string) (*originConn, *refusal) {
	s.rest()
	addrs, err := s.resolve(ctx, name)
	last := unconnected(addrs, err)
	if err != nil {
		return nil, last
	}
	most := s.guard.cfg.Limits
	ctx, cancel := context.WithTimeout(ctx, most.ConnectTotal)
	defer cancel()
	dialer := net.Dialer{Timeout: most.ConnectTimeout, KeepAliveConfig: nonblock.KeepAliveConfig, Control: s.prepare}
	for _, addr := range addrs {
		addr = addr.Unmap()
		if !s.mayConnect(addr) {
			continue
		}
		c, refused := s.connectTo(ctx, &dialer, netip.AddrPortFrom(addr, s.port))
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
func (s *httpSession) connectTo(ctx context.Context, dialer *net.Dialer, to netip.AddrPort) (_ *originConn, refused *refusal) {
	user := s.endpoint.User()
	if refused := s.guard.takeSocket(user, to); refused != nil {
		return nil, refused
	}
	defer func() {
		if refused != nil {
			s.guard.giveSocket(user, to, false)
		}
	}()
	c, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, unreachable(err)
	}
	tcp := c.(*net.TCPConn)
	raw, err := tcp.SyscallConn()
	if err != nil || !s.own(tcp) {
		reset(tcp)
		return nil, unreachable(err)
	}
	return &originConn{socket: newSocket(tcp, raw, s), to: to}, nil
}

func (s *httpSession) prepare(_, _ string, socket syscall.RawConn) error {
	return socket.Control(func(fd uintptr) {
		nonblock.DelayAck(int(fd))
		nonblock.BoundOrigin(int(fd), s.buffers)
	})
}
