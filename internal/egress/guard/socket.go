package guard

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"

	"github.com/daycare-run/sandbox/internal/budget"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// socket is a connection that net/http uses. What is read of a head counts against the user's
// budget.
type socket struct {
	net.Conn // end, without its ways around Read and Write
	end      *end
	session  *httpSession
	// inHead says that what is read next belongs to a head. It is false while a request of the
	// client is served.
	inHead atomic.Bool
	closed atomic.Bool
	// opaque says that TLS is ended here, so that heads cannot be told from what follows.
	opaque bool
}

var errNoRoom = errors.New("the user's budget for HTTP heads is used up")

func newSocket(e *end, session *httpSession) *socket {
	s := &socket{Conn: e, end: e, session: session}
	s.inHead.Store(true)
	return s
}

func (s *socket) Read(p []byte) (n int, err error) {
	// While a request is served, net/http's server reads from the client to see whether it is still
	// there, beside those who work. Reads of the body are counted by clientBody.
	counts := s != s.session.socket || s.inHead.Load() || s.session.multiplexes()
	if counts {
		s.session.rest()
	}
	n, err = s.end.Read(p)
	if err == nil && s.inHead.Load() && !s.opaque && !s.session.keep(n) {
		return 0, s.end.fault("read", errNoRoom)
	}
	if counts && err == nil {
		s.session.work(&s.closed)
	}
	return n, err
}

func (s *socket) Write(p []byte) (int, error) {
	s.session.rest()
	return s.end.Write(p)
}

// CloseWrite is for net/http, which lets the peer read an answer before it resets the connection.
func (s *socket) CloseWrite() error {
	s.session.rest()
	return s.end.CloseWrite()
}

// conn is an accepted HTTP connection, or what is below the TLS of one that is read.
type conn struct {
	*socket
	early []byte // read already: the hello
}

// Read ends everything at once when the client has reset the connection: net/http would take that
// for the end of one half.
func (c *conn) Read(p []byte) (int, error) {
	if len(c.early) > 0 {
		n := copy(p, c.early)
		if c.early = c.early[n:]; len(c.early) == 0 {
			c.early = nil // and with it the hello
		}
		return n, nil
	}
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

func (c *conn) Write(p []byte) (int, error) {
	c.session.tellMalformed()
	return c.socket.Write(p)
}

// Close waits until its client has received everything: until then the connection counts.
func (c *conn) Close() error {
	c.closed.Store(true)
	c.session.rest()
	budget.Deliver(c.session.life, c.end.TCPConn, c.session.guard.cfg.Limits.HalfClosedIdle)
	return c.Conn.Close()
}

// originConn is a connection to an origin. It takes a port and a descriptor from its user's
// budgets.
type originConn struct {
	*socket
	to netip.AddrPort
	// switched says that the connection has become another protocol's.
	switched atomic.Bool
	// origins is reading.origins; nil if the connection is not read.
	origins chan struct{}
}

// Close resets the connection, which leaves nothing behind: net/http closes one when nothing is in
// transit, or it is no longer wanted. An upgraded one may still have something to deliver.
func (c *originConn) Close() error {
	if !c.closed.CompareAndSwap(false, true) {
		return net.ErrClosed
	}
	c.session.rest()
	if c.origins != nil {
		<-c.origins
	}
	switched := c.switched.Load()
	if switched {
		budget.Deliver(c.session.life, c.end.TCPConn, c.session.guard.cfg.Limits.HalfClosedIdle)
	} else {
		_ = c.end.SetLinger(0)
	}
	err := c.session.disown(c.end.TCPConn)
	c.session.giveSocket(c.to, switched)
	return err
}
