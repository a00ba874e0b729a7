package api

import (
	linked "container/list"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/budget"
)

// Connections shares a service's connections among its callers, by uid at the socket, by token over TCP, and by
// address until a token has come. Whoever has as many as it may loses the one that has been without a request for
// longest; it is refused where all have one. It is safe for concurrent use.
type Connections struct {
	shared  *budget.Pool
	reserve *budget.Pool // for operators, where there is nothing else

	mu      sync.Mutex
	resting linked.List // of *wire: those without a request, the longest first
	refused uint64
}

// operatorsReserve is how many connections are for operators alone, of which each may have a quarter.
const operatorsReserve = 64

// NewConnections shares so many connections.
func NewConnections(total int) *Connections {
	return &Connections{shared: budget.NewPool(total, 0), reserve: budget.NewPool(operatorsReserve, 0)}
}

// Stats are the numbers of now.
func (c *Connections) Stats() budget.Stats {
	s := c.shared.Stats()
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Refused = c.refused
	return s
}

// addressShare returns whose share a connection takes when only its address is known. Whoever has an address of
// IPv6 has 2^64.
func addressShare(conn net.Conn) string {
	addr, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return "strangers"
	}
	prefix, _ := addr.Addr().Unmap().Prefix(min(addr.Addr().Unmap().BitLen(), 64)) // of its own length
	return "address " + prefix.String()
}

// enter reports whether a new connection has a place. caller is whose share it takes; empty for whoever has not shown a token
// yet, or may not call at all.
func (c *Connections) enter(w *wire, caller string, operator bool) bool {
	w.known = caller != ""
	name := "caller " + caller
	if !w.known {
		name = addressShare(w.Conn)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.take(w, name) && !(operator && c.hold(w, c.reserve, name)) {
		c.refused++
		return false
	}
	w.resting = c.resting.PushBack(w)
	return true
}

// take takes a place for a connection, another's if need be; the lock is held.
func (c *Connections) take(w *wire, name string) bool {
	for !c.hold(w, c.shared, name) {
		other := c.idlest(func(other *wire) bool { return other.holder == name })
		if other == nil {
			other = c.idlest(func(other *wire) bool { return !other.known })
		}
		if other == nil {
			return false
		}
		c.forget(other)
		other.evicted = true
		_ = raw(other.Conn).Close() // TLS would want to say good-bye first
	}
	return true
}

// idlest is the first of those connections that has no request, or nil; the lock is held.
func (c *Connections) idlest(of func(*wire) bool) *wire {
	for e := c.resting.Front(); e != nil; e = e.Next() {
		if w := e.Value.(*wire); of(w) {
			return w
		}
	}
	return nil
}

// hold takes a place of a pool; the lock is held.
func (c *Connections) hold(w *wire, from *budget.Pool, name string) bool {
	if !from.Take(name, 1) {
		return false
	}
	w.place, w.holder = from, name
	return true
}

// forget gives a connection's place back; the lock is held.
func (c *Connections) forget(w *wire) {
	if w.place != nil {
		w.place.Give(w.holder, 1)
		w.place = nil
	}
	c.wake(w)
}

// wake takes a connection from those without a request; the lock is held.
func (c *Connections) wake(w *wire) {
	if w.resting != nil {
		c.resting.Remove(w.resting)
		w.resting = nil
	}
}

// identify has a connection be a caller's from now on. The error is of class ResourceExhausted.
func (c *Connections) identify(w *wire, caller string) error {
	name := "caller " + caller
	c.mu.Lock()
	defer c.mu.Unlock()
	place, holder := w.place, w.holder
	if holder == name || place == nil {
		return nil
	}
	if !c.take(w, name) {
		c.refused++
		return fmt.Errorf("%s has as many connections as it may, each with a request: try again when one has ended: %w", caller, cerrdefs.ErrResourceExhausted)
	}
	place.Give(holder, 1)
	w.known = true
	return nil
}

// work notes that a request has come, and reports whether the connection was still there.
func (c *Connections) work(w *wire) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wake(w)
	return !w.evicted
}

// rest notes that a request has been answered.
func (c *Connections) rest(w *wire) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.place != nil && w.resting == nil {
		w.resting = c.resting.PushBack(w)
	}
}

// leave gives back the place of a connection that is over.
func (c *Connections) leave(w *wire) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(w)
}

// identified has a request's connection be its caller's.
func identified(ctx context.Context, w http.ResponseWriter, caller string) error {
	conn, ok := ctx.Value(wireKey{}).(*wire)
	if !ok {
		return nil // nobody shares the server's connections
	}
	err := conn.of.identify(conn, caller)
	if err != nil {
		w.Header().Set("Connection", "close")
	}
	return err
}

// raw is what a connection is encrypted over, or itself.
func raw(conn net.Conn) net.Conn {
	if encrypted, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return encrypted.NetConn()
	}
	return conn
}
