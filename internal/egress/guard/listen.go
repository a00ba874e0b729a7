package guard

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

// acceptPause is the pause after an accept that has failed.
const acceptPause = 100 * time.Millisecond

// httpListener accepts HTTP connections of clients, within their limits.
type httpListener struct {
	*net.TCPListener
	guard *Guard
	life  context.Context // the guard's
}

// Accept returns a *conn. Its only error is that the listener is closed: any error ends the server.
func (l *httpListener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptTCP()
		if l.life.Err() != nil || errors.Is(err, net.ErrClosed) {
			if c != nil {
				reset(c)
			}
			return nil, net.ErrClosed
		}
		if err != nil {
			l.guard.cfg.Logger.Error().Err(err).Msg("cannot accept an HTTP connection")
			select {
			case <-l.life.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		if l.guard.direct(peer(c.RemoteAddr()).Addr(), peer(c.LocalAddr()).Addr(), l.guard.cfg.HTTPPort, func() (*net.TCPConn, error) { return c, nil }) {
			continue
		}
		s := &httpSession{flow: &flow{guard: l.guard, port: l.guard.cfg.HTTPPort, to: peer(c.LocalAddr()).Addr(), plain: true}}
		s.cut = s.abort
		s.own(c)
		raw, err := c.SyscallConn()
		admitted := false
		if err == nil {
			err = raw.Control(func(fd uintptr) {
				admitted = s.enter(l.life, int(fd), peer(c.RemoteAddr()).Addr())
			})
		}
		if err != nil || !admitted {
			reset(c)
			continue
		}
		return &conn{newSocket(c, raw, s)}, nil
	}
}

func peer(addr net.Addr) netip.AddrPort {
	a := addr.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// reset closes a connection and discards what is still to be sent: the peer gets a reset, and nothing more is sent.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
