package guard

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// keepAlive finds peers that are gone, in about two minutes: nothing else ends an idle connection.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: 15 * time.Second, Count: 4}

func (e Endpoint) listen(ctx context.Context) (*net.TCPListener, error) {
	if e.Listener != nil {
		return e.Listener, nil
	}
	config := net.ListenConfig{KeepAliveConfig: keepAlive}
	config.SetMultipathTCP(false) // what the pollers do with a socket is for TCP alone
	l, err := config.Listen(ctx, "tcp", e.Addr.String())
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", e.Addr, err)
	}
	return l.(*net.TCPListener), nil
}

// door is the listener for HTTP. It lets connections of clients in, within their limits.
type door struct {
	*net.TCPListener
	guard *Guard
	life  context.Context // the guard's
}

// Accept returns *conn.
func (d *door) Accept() (net.Conn, error) {
	for {
		c, err := d.AcceptTCP()
		if err != nil {
			return nil, err
		}
		w := &web{flow: &flow{guard: d.guard, port: d.guard.cfg.HTTP.Port, plain: true}}
		w.cut = w.abort
		w.own(c)
		raw, err := c.SyscallConn()
		let := false
		if err == nil {
			err = raw.Control(func(fd uintptr) { let = w.enter(d.life, int(fd), peer(c.RemoteAddr()).Addr(), peer(c.LocalAddr())) })
		}
		if err != nil || !let {
			reset(c)
			continue
		}
		return &conn{newSocket(c, raw, w)}, nil
	}
}

func peer(addr net.Addr) netip.AddrPort {
	a := addr.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// reset closes a connection and throws away what is still to be sent: the peer is told that it was
// cut off, and nothing leaves any more.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
