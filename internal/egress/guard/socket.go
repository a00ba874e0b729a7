package guard

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"

	"github.com/daycare-run/sandbox/internal/budget"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/egress/nonblock"
)

// socket is a connection that net/http uses. Its reads and writes take its user's turns, and what is read of a
// head counts against the user's budget.
type socket struct {
	net.Conn // tcp, without its ways around Read and Write
	tcp      *net.TCPConn
	raw      syscall.RawConn
	session  *httpSession
	// inHead says that what is read next belongs to a head. It is false while a request of the client is served.
	inHead atomic.Bool
	closed atomic.Bool
}

// socketShare is how much is read or written in one turn.
const socketShare = 64 << 10

var errNoRoom = errors.New("the user's budget for HTTP heads is used up")

func newSocket(c *net.TCPConn, raw syscall.RawConn, w *httpSession) *socket {
	s := &socket{Conn: c, tcp: c, raw: raw, session: w}
	s.inHead.Store(true)
	return s
}

func (s *socket) Read(p []byte) (n int, err error) {
	// While a request is served, net/http's server reads from the client to see whether it is still there, beside those who work.
	// Reads of the body are counted by clientBody.
	counts := s != s.session.socket || s.inHead.Load()
	if counts {
		s.session.rest()
	}
	var failed error
	turns, user := s.session.guard.turns, s.session.endpoint.User()
	err = s.raw.Read(func(fd uintptr) bool {
		turns.acquire(user)
		defer turns.release()
		n, failed = nonblock.Read(int(fd), p[:min(len(p), socketShare)])
		return failed != nonblock.Again
	})
	switch {
	case err != nil || failed != nil:
		return 0, s.fault("read", err, failed)
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	case s.inHead.Load() && !s.session.keep(n):
		return 0, s.fault("read", errNoRoom, nil)
	}
	if counts {
		s.session.work(&s.closed)
	}
	return n, nil
}

func (s *socket) Write(p []byte) (sent int, err error) {
	s.session.rest()
	for sent < len(p) {
		var n int
		var failed error
		turns, user := s.session.guard.turns, s.session.endpoint.User()
		err := s.raw.Write(func(fd uintptr) bool {
			turns.acquire(user)
			defer turns.release()
			n, failed = nonblock.Send(int(fd), p[sent:min(len(p), sent+socketShare)])
			return failed != nonblock.Again
		})
		if err != nil || failed != nil {
			return sent, s.fault("write", err, failed)
		}
		sent += n
	}
	return sent, nil
}

// CloseWrite is for net/http, which lets the peer read an answer before it resets the connection.
func (s *socket) CloseWrite() error {
	s.session.rest()
	return s.tcp.CloseWrite()
}

// fault returns an error like those of net's own connections.
func (s *socket) fault(op string, of ...error) error {
	err := errors.Join(of...)
	if wrapped, is := errors.AsType[*net.OpError](err); is {
		err = wrapped.Err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: s.LocalAddr(), Addr: s.RemoteAddr(), Err: err}
}

// conn is an accepted HTTP connection.
type conn struct{ *socket }

// Read ends everything at once when the client has reset the connection: net/http would take that for the end
// of one half.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.socket.Read(p)
	if errors.Is(err, syscall.ECONNRESET) {
		c.session.abort()
	}
	if errors.Is(err, errNoRoom) {
		c.session.refused.Store(true)
		c.session.decide("", &refusal{verdict: decisions.Limited, reason: reasonHellos})
	}
	return n, err
}

// Close waits until its client has received everything: until then the connection counts.
func (c *conn) Close() error {
	c.closed.Store(true)
	c.session.rest()
	budget.Deliver(c.session.life, c.tcp, c.session.guard.cfg.Limits.HalfClosedIdle)
	return c.Conn.Close()
}

// originConn is a connection to an origin. It takes a port and a descriptor from its user's budgets.
type originConn struct {
	*socket
	to netip.AddrPort
	// switched says that the connection has become another protocol's.
	switched atomic.Bool
}

// Close resets the connection, which leaves nothing behind: net/http closes one when nothing is in transit, or
// it is no longer wanted. An upgraded one may still have something to deliver.
func (c *originConn) Close() error {
	if !c.closed.CompareAndSwap(false, true) {
		return net.ErrClosed
	}
	c.session.rest()
	switched := c.switched.Load()
	if switched {
		budget.Deliver(c.session.life, c.tcp, c.session.guard.cfg.Limits.HalfClosedIdle)
	} else {
		_ = c.tcp.SetLinger(0)
	}
	err := c.session.disown(c.tcp)
	c.session.guard.giveSocket(c.session.endpoint.User(), c.to, switched)
	return err
}

// takeSocket takes what a connection to an origin needs from its user's budgets.
func (g *Guard) takeSocket(user string, to netip.AddrPort) *refusal {
	if !g.cfg.Budget.Descriptors.Take(user, 1) {
		return &refusal{verdict: decisions.Limited, reason: reasonSockets}
	}
	if !g.cfg.Budget.Ports.Take(user, to) {
		g.cfg.Budget.Descriptors.Give(user, 1)
		return unreachable(errPorts)
	}
	return nil
}

func (g *Guard) giveSocket(user string, to netip.AddrPort, kept bool) {
	g.cfg.Budget.Descriptors.Give(user, 1)
	g.cfg.Budget.Ports.Give(user, to, kept)
}
