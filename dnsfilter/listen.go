package dnsfilter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Socket holds the sockets of one address.
type Socket struct {
	TCP *net.TCPListener
	UDP []*net.UDPConn
}

// Close closes all of them.
func (s Socket) Close() {
	if s.TCP != nil {
		s.TCP.Close()
	}
	for _, conn := range s.UDP {
		conn.Close()
	}
}

// Listen binds an address, the gateway of a bridge, by TCP and by UDP. It must be specific, so that
// an answer comes from the address that was asked; it need not exist yet. Port 0 takes one that is
// free for TCP. There is a UDP socket for each processor: the kernel spreads clients over them. TCP
// comes first because its address is not shared: a second server at the same address fails there,
// and does not take questions from the first.
func Listen(ctx context.Context, at netip.AddrPort) (bound Socket, err error) {
	if !at.IsValid() || at.Addr().IsUnspecified() || at.Addr().IsMulticast() || at.Addr().Is4In6() {
		return bound, fmt.Errorf("cannot answer DNS at %s: it is no specific address", at)
	}
	defer func() {
		if err != nil {
			bound.Close()
			bound, err = Socket{}, fmt.Errorf("cannot answer DNS at %s: %w", at, err)
		}
	}()
	free := net.ListenConfig{Control: control(freeBind), KeepAlive: -1}
	listener, err := free.Listen(ctx, "tcp", at.String())
	if err != nil {
		return bound, err
	}
	bound.TCP = listener.(*net.TCPListener)
	at = bound.TCP.Addr().(*net.TCPAddr).AddrPort()
	shared := net.ListenConfig{Control: control(freeBind, sharePort)}
	for range runtime.GOMAXPROCS(0) {
		conn, err := shared.ListenPacket(ctx, "udp", at.String())
		if err != nil {
			return bound, err
		}
		bound.UDP = append(bound.UDP, conn.(*net.UDPConn))
	}
	return bound, nil
}

// option is a socket option that is switched on before the socket is bound.
type option struct{ level, name int }

var (
	freeBind  = option{unix.SOL_IP, unix.IP_FREEBIND} // for IPv6 sockets too
	sharePort = option{unix.SOL_SOCKET, unix.SO_REUSEPORT}
)

func control(options ...option) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		for _, o := range options {
			failed := c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), o.level, o.name, 1)
			})
			if err := errors.Join(failed, err); err != nil {
				return err
			}
		}
		return nil
	}
}
