package guard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// keepAlive finds peers that are gone, in about two minutes: nothing else ends an idle connection.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: 15 * time.Second, Count: 4}

func (e Endpoint) listen(ctx context.Context) (net.Listener, error) {
	if e.Listener != nil {
		return e.Listener, nil
	}
	config := net.ListenConfig{KeepAliveConfig: keepAlive}
	// conntrack's answer is for TCP sockets alone.
	config.SetMultipathTCP(false)
	l, err := config.Listen(ctx, "tcp", e.Addr.String())
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", e.Addr, err)
	}
	return l, nil
}

// conn is an accepted connection that belongs to a flow.
type conn struct {
	*net.TCPConn
	flow *flow
}

// door is a listener whose connections are those of clients, within their limits.
type door struct {
	net.Listener
	guard *Guard
	life  context.Context // the guard's
	port  uint16
	plain bool
}

// Accept returns *conn.
func (d *door) Accept() (net.Conn, error) {
	for {
		accepted, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c, ok := accepted.(*net.TCPConn)
		if !ok {
			_ = accepted.Close()
			return nil, errors.New("cannot guard a connection that is not TCP")
		}
		if f := d.admit(c); f != nil {
			return &conn{TCPConn: c, flow: f}, nil
		}
		reset(c)
	}
}

// admit finds whose connection it is. It returns nil for one that must end now.
func (d *door) admit(c *net.TCPConn) *flow {
	g := d.guard
	source := peer(c.RemoteAddr())
	client, known := g.cfg.Client(source.Addr())
	if !known {
		g.counts.unknown.Add(1)
		return nil
	}
	f := &flow{guard: g, client: client, who: identity{source.Addr(), client.Done()}, port: d.port, plain: d.plain}
	dialled, err := g.cfg.Dialled(c)
	if here := peer(c.LocalAddr()); err != nil || dialled == here || dialled.Port() != d.port {
		f.decide("", refusal{verdict: Denied, reason: reasonDirect, err: err})
		return nil
	}
	f.own(c)
	switch g.clients.enter(d.life, f) {
	case revoked:
		return nil
	case full:
		f.decide("", refusal{verdict: Limited, reason: reasonTooMany})
		return nil
	}
	return f
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

// originalDst asks conntrack where a redirected connection was going. A connection that was not
// redirected has its own address there, or no answer.
func originalDst(c *net.TCPConn) (netip.AddrPort, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("cannot ask where a connection was going: %w", err)
	}
	var got *unix.IPv6Mreq
	var asked error
	err = raw.Control(func(fd uintptr) {
		// The answer is a sockaddr_in; of the types that x/sys/unix reads, this one has room for it.
		got, asked = unix.GetsockoptIPv6Mreq(int(fd), unix.IPPROTO_IP, unix.SO_ORIGINAL_DST)
	})
	if err := errors.Join(err, asked); err != nil {
		return netip.AddrPort{}, fmt.Errorf("cannot ask where a connection was going: %w", err)
	}
	sockaddr := got.Multiaddr
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(sockaddr[4:8])), binary.BigEndian.Uint16(sockaddr[2:4])), nil
}
