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

	"github.com/daycare-run/sandbox/internal/fair"
)

// Connections shares a service's connections among its callers: by uid at the socket, by token over
// TCP, and by address before a token has arrived. A caller with its full share loses its longest
// idle connection to a new one. If none is idle, that of an address with more connections is lost,
// or the new one is refused. It is safe for concurrent use.
type Connections struct {
	shared  *fair.Pool
	reserve *fair.Pool // for operators, when nothing else is free

	mu      sync.Mutex
	resting linked.List // of *wire: those without a request, longest idle first
	refused uint64
}

// operatorsReserve is the number of connections reserved for operators. Each may have a quarter of
// them.
const operatorsReserve = 64

// NewConnections returns a Connections that shares total connections.
func NewConnections(total int) *Connections {
	return &Connections{shared: fair.NewPool(total, 0),
		reserve: fair.NewPool(operatorsReserve, 0)}
}

// Stats returns the current numbers.
func (c *Connections) Stats() fair.Stats {
	s := c.shared.Stats()
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Refused = c.refused
	return s
}

// addressShare returns the name of the share that a connection takes while only its address is
// known. An IPv6 address counts by its /64, because its owner has 2^64 of them.
func addressShare(conn net.Conn) string {
	addr, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return "strangers"
	}
	prefix, _ := addr.Addr().Unmap().Prefix(min(addr.Addr().Unmap().BitLen(), 64)) // no error: the length fits
	return "address " + prefix.String()
}

// enter reports whether a new connection gets a place. caller is whose share it takes; empty if no
// token was shown yet, or if the peer may not call at all.
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

// take gets a place for a connection, if need be that of an idle one, which is closed. The caller
// holds mu.
func (c *Connections) take(w *wire, name string) bool {
	if c.hold(w, c.shared, name) {
		return true
	}
	other := c.idlest(func(other *wire) bool { return other.holder == name })
	if other == nil {
		other = c.spare(name)
	}
	if other == nil {
		return false
	}
	w.place, w.holder = other.place, name
	other.place.Move(other.holder, name, 1)
	other.place, other.evicted = nil, true
	c.wake(other)
	_ = raw(other.Conn).Close() // closing it over TLS would first send an alert
	return true
}

// spare returns an idle connection, without a token, of the holder with the most places among those
// that have one, or nil. That holder has more places than name has, so whoever has many takes
// nothing from whoever has few. The caller holds mu.
func (c *Connections) spare(name string) (found *wire) {
	most := c.shared.Of(name)
	for e := c.resting.Front(); e != nil; e = e.Next() {
		if w := e.Value.(*wire); !w.known {
			if n := c.shared.Of(w.holder); n > most {
				found, most = w, n
			}
		}
	}
	return found
}

// idlest returns the longest idle connection for which of is true, or nil. The caller holds mu.
func (c *Connections) idlest(of func(*wire) bool) *wire {
	for e := c.resting.Front(); e != nil; e = e.Next() {
		if w := e.Value.(*wire); of(w) {
			return w
		}
	}
	return nil
}

// hold takes a place of a pool. The caller holds mu.
func (c *Connections) hold(w *wire, from *fair.Pool, name string) bool {
	if !from.Take(name, 1) {
		return false
	}
	w.place, w.holder = from, name
	return true
}

// forget gives a connection's place back. The caller holds mu.
func (c *Connections) forget(w *wire) {
	if w.place != nil {
		w.place.Give(w.holder, 1)
		w.place = nil
	}
	c.wake(w)
}

// wake removes a connection from the idle ones. The caller holds mu.
func (c *Connections) wake(w *wire) {
	if w.resting != nil {
		c.resting.Remove(w.resting)
		w.resting = nil
	}
}

// identify assigns a connection to a caller from now on. The error is of class ResourceExhausted.
func (c *Connections) identify(w *wire, caller string) error {
	name := "caller " + caller
	c.mu.Lock()
	defer c.mu.Unlock()
	place, holder := w.place, w.holder
	if holder == name || place == nil {
		return nil
	}
	if !c.take(w, name) {
		// A caller with few connections goes on with the place that this one has as an address.
		if place == c.shared && c.shared.Of(name) < c.shared.Stats().Total/8 {
			place.Move(holder, name, 1)
			w.holder, w.known = name, true
			return nil
		}
		c.refused++
		return fmt.Errorf(
			"%s already has as many connections as allowed, each with a request: try again when one has ended: %w",
			caller, cerrdefs.ErrResourceExhausted)
	}
	place.Give(holder, 1)
	w.known = true
	return nil
}

// work notes that a request has arrived, and reports whether the connection was not evicted.
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

// leave gives back the place of a connection that has ended.
func (c *Connections) leave(w *wire) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(w)
}

// identified assigns a request's connection to the request's caller.
func identified(ctx context.Context, w http.ResponseWriter, caller string) error {
	conn, ok := ctx.Value(wireKey{}).(*wire)
	if !ok {
		return nil // the server's connections are not shared
	}
	err := conn.of.identify(conn, caller)
	if err != nil {
		w.Header().Set("Connection", "close")
	}
	return err
}

// raw returns the connection under TLS, or conn itself.
func raw(conn net.Conn) net.Conn {
	if encrypted, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return encrypted.NetConn()
	}
	return conn
}
