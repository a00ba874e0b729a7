package guard

import (
	"context"
	"net"
	"net/netip"
	"syscall"
)

// connect resolves an allowed name for the connection's client and connects to the first of its addresses
// that answers. The socket belongs to w. The error is a refusal.
func (w *web) connect(ctx context.Context, name string) (*net.TCPConn, *refusal) {
	addrs, err := w.resolve(ctx, name)
	last := unconnected(addrs, err)
	if err != nil {
		return nil, last
	}
	most := w.guard.cfg.Limits
	ctx, cancel := context.WithTimeout(ctx, most.ConnectTotal)
	defer cancel()
	dialer := net.Dialer{Timeout: most.ConnectTimeout, KeepAliveConfig: keepAlive, Control: prepare}
	for _, addr := range addrs {
		addr = addr.Unmap()
		if !w.mayConnect(addr) {
			continue
		}
		// An address, never a name: nothing is resolved again between the check and this.
		c, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(addr, w.port).String())
		if err == nil {
			c := c.(*net.TCPConn)
			if !w.own(c) {
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

func prepare(_, _ string, socket syscall.RawConn) error {
	return socket.Control(func(fd uintptr) { speakFirst(int(fd)) })
}
