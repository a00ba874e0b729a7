package guard

import (
	"context"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// connect resolves an allowed name for the flow's client and connects to the first of its addresses
// that answers. The socket belongs to the flow. The error is a refusal.
func (f *flow) connect(ctx context.Context, name string) (*net.TCPConn, *refusal) {
	addrs, err := f.resolve(ctx, name)
	if err != nil {
		return nil, &refusal{verdict: Failed, reason: reasonUnresolved, err: err}
	}
	most := f.guard.cfg.Limits
	ctx, cancel := context.WithTimeout(ctx, most.ConnectTotal)
	defer cancel()
	dialer := net.Dialer{Timeout: most.ConnectTimeout, KeepAliveConfig: keepAlive, Control: speakFirst}
	last := &refusal{verdict: Denied, reason: reasonNotPublic}
	if len(addrs) == 0 {
		last = &refusal{verdict: Failed, reason: reasonUnresolved}
	}
	for _, addr := range addrs {
		addr = addr.Unmap()
		if !addr.IsValid() || addr.Zone() != "" || !f.guard.cfg.MayConnect(f.client, addr) {
			continue
		}
		// An address, never a name: nothing is resolved again between the check and this.
		c, err := dialer.DialTCP(ctx, "tcp", netip.AddrPort{}, netip.AddrPortFrom(addr, f.port))
		if err == nil {
			if !f.own(c) {
				return nil, &refusal{verdict: Failed, reason: reasonUnreachable, err: context.Canceled}
			}
			return c, nil
		}
		last = &refusal{verdict: Failed, reason: reasonUnreachable, err: err}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, last
}

// speakFirst has a socket send the last packet of TCP's handshake together with the first words, which we
// have already: so the server is woken once, and not a moment before there is anything to read.
func speakFirst(_, _ string, socket syscall.RawConn) error {
	return socket.Control(func(fd uintptr) {
		// Where it is refused, there is one packet more.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0)
	})
}

func (f *flow) resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, f.guard.cfg.Limits.ResolveTimeout)
	defer cancel()
	return f.guard.cfg.Resolve(ctx, f.client, name)
}
