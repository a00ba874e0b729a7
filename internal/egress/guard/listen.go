package guard

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/daycare-run/sandbox/internal/egress/sockopt"
)

// acceptPause is the pause after an accept that has failed.
const acceptPause = 100 * time.Millisecond

// listener accepts connections of clients to one port, within their limits.
type listener struct {
	*net.TCPListener
	guard *Guard
	life  context.Context // the guard's
	port  uint16
	plain bool
}

// next waits for the next connection. Its only error is that the listener is closed.
func (l *listener) next() (*flow, *end, error) {
	for {
		c, err := l.AcceptTCP()
		if l.life.Err() != nil || errors.Is(err, net.ErrClosed) {
			if c != nil {
				reset(c)
			}
			return nil, nil, net.ErrClosed
		}
		if err != nil {
			// Most likely descriptors have run out, and connections that end will free some.
			l.guard.cfg.Logger.Error().Err(err).Msg("guard cannot accept a connection")
			select {
			case <-l.life.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		source, to := peer(c.RemoteAddr()).Addr(), peer(c.LocalAddr()).Addr()
		who, known := l.guard.cfg.Network.Client(source)
		switch {
		case !known:
			reset(c)
			continue
		case who.Direct(to):
			l.guard.cfg.Network.Relay(c, l.port)
			continue
		}
		_ = c.SetKeepAliveConfig(sockopt.KeepAlive)
		f := &flow{guard: l.guard, who: who, port: l.port, to: to, plain: l.plain}
		f.own(c)
		if !f.enter(l.life, c) {
			reset(c)
			continue
		}
		return f, l.guard.newEnd(c, f.who.User(), &f.owned), nil
	}
}

// httpListener is for net/http.
type httpListener struct{ *listener }

// Accept returns a *conn. Its only error is that the listener is closed: any error ends the server.
func (l httpListener) Accept() (net.Conn, error) {
	f, client, err := l.next()
	if err != nil {
		return nil, err
	}
	return &conn{socket: newSocket(client, &httpSession{flow: f})}, nil
}

func peer(addr net.Addr) netip.AddrPort {
	a := addr.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
