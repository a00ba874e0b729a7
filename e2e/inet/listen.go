package inet

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// An Arrival is something that reached an origin or a listener. One request over TLS is three of
// them: Connection, ClientHello, Request.
type Arrival struct {
	Kind     Kind
	Proto    string // "tcp", "udp", "tls", or the request's, such as "HTTP/2.0"
	From, To netip.AddrPort
	Time     time.Time

	SNI                string // of ClientHello and Request; empty when there was none
	Host, Method, Path string // of Request
	Data               []byte // of Data: a datagram, or what a connection sent first, up to 4 KiB
}

// Kind is what arrived.
type Kind string

const (
	Connection  Kind = "connection"  // TCP, established
	ClientHello Kind = "ClientHello" // on an origin's port 443, before the handshake goes on
	Request     Kind = "request"     // of HTTP, its header
	Data        Kind = "data"        // on a listener
)

const maxData = 4096

// Listen accepts TCP connections, logs them and what they send first, and returns to each what it
// sends, until the Inet is closed.
func (in *Inet) Listen(at netip.AddrPort) error { return in.Serve(at, in.echo) }

// Serve accepts TCP connections, logs them and has serve speak with each. It closes a connection
// when serve has returned, or when the Inet is closed.
func (in *Inet) Serve(at netip.AddrPort, serve func(*net.TCPConn)) error {
	l, err := in.listen(at)
	if err != nil {
		return err
	}
	return in.own(l, func() {
		logged := &loggedListener{l, in}
		for {
			c, err := logged.Accept()
			if err != nil {
				return
			}
			tcp := c.(*ownedConn).Conn.(*net.TCPConn)
			if in.own(c, func() { defer c.Close(); serve(tcp) }) != nil {
				return
			}
		}
	})
}

func (in *Inet) echo(c *net.TCPConn) {
	first := make([]byte, maxData)
	n, err := c.Read(first)
	if err != nil {
		return
	}
	in.arrived.add(Arrival{
		Kind: Data, Proto: "tcp", From: addrPort(c.RemoteAddr()), To: addrPort(c.LocalAddr()),
		Time: time.Now(), Data: first[:n],
	})
	if _, err := c.Write(first[:n]); err == nil {
		_, _ = io.Copy(c, c)
	}
}

// ListenUDP logs datagrams and sends each back, until the Inet is closed.
func (in *Inet) ListenUDP(at netip.AddrPort) error {
	c, err := in.listenPacket(at)
	if err != nil {
		return err
	}
	return in.own(c, func() {
		for buf := make([]byte, 1<<16); ; {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			in.arrived.add(Arrival{
				Kind: Data, Proto: "udp", From: from, To: at, Time: time.Now(),
				Data: append([]byte(nil), buf[:min(n, maxData)]...),
			})
			_, _ = c.WriteToUDPAddrPort(buf[:n], from)
		}
	})
}

// listen makes a socket in the namespace; the caller owns it.
func (in *Inet) listen(at netip.AddrPort) (l net.Listener, err error) {
	if err := on(in.space.inside, func() error {
		var plain net.ListenConfig
		plain.SetMultipathTCP(false)
		l, err = plain.Listen(context.Background(), "tcp", at.String())
		return err
	}); err != nil {
		return nil, fmt.Errorf("cannot listen in the test internet: %w", err)
	}
	return l, nil
}

// listenPacket makes a socket in the namespace; the caller owns it.
func (in *Inet) listenPacket(at netip.AddrPort) (c *net.UDPConn, err error) {
	if err := on(in.space.inside, func() error {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	}); err != nil {
		return nil, fmt.Errorf("cannot listen in the test internet: %w", err)
	}
	return c, nil
}

// A loggedListener logs connections, and makes Close close them, whoever has taken them over.
type loggedListener struct {
	net.Listener
	in *Inet
}

func (l *loggedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.in.arrived.add(Arrival{
		Kind: Connection, Proto: "tcp", From: addrPort(c.RemoteAddr()), To: addrPort(c.LocalAddr()),
		Time: time.Now(),
	})
	owned := &ownedConn{c, l.in}
	return owned, l.in.own(owned, nil)
}

type ownedConn struct {
	net.Conn
	in *Inet
}

// Close resets the connection when the whole Inet closes: what its client sent after that, if only
// to say good-bye, would find no route to here and take the host's default one.
func (c *ownedConn) Close() error {
	if tcp, ok := c.Conn.(*net.TCPConn); c.in.disown(c) && ok {
		_ = tcp.SetLinger(0)
	}
	return c.Conn.Close()
}
