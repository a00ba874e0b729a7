package egress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routes asks the kernel where it would send packets to an address. The guard asks before each
// connection, so the socket stays open.
type routes struct {
	mu     sync.Mutex
	handle routeGetter // nil after an error, and after close
	closed bool
	known  map[netip.Addr]route
}

// routeGetter is *netlink.Handle.
type routeGetter interface {
	RouteGet(destination net.IP) ([]netlink.Route, error)
	Close()
}

// route is what the kernel answered, and until when the answer is used.
type route struct {
	own   bool
	until time.Time
}

const (
	// routeLifetime is how long an answer is used, and so how late a new address of the host is
	// known to be its own. It is for programs that open one connection after the other to the same
	// server.
	routeLifetime = time.Second
	routesKnown   = 1024
	// routePatience bounds the wait for the kernel's answer, during which others wait too: it comes
	// within microseconds.
	routePatience = 500 * time.Millisecond
)

func openRoutes() (*routes, error) {
	r := &routes{}
	return r, r.open()
}

func (r *routes) open() error {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err == nil {
		err = handle.SetSocketTimeout(routePatience)
	}
	if err != nil {
		return fmt.Errorf("cannot ask the kernel for routes: %w", err)
	}
	r.handle = handle
	return nil
}

func (r *routes) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed, r.known = true, nil
	r.drop()
}

func (r *routes) drop() {
	if r.handle != nil {
		r.handle.Close()
		r.handle = nil
	}
}

// own reports whether the kernel would deliver to the host itself. If the kernel does not say, it
// reports true.
func (r *routes) own(addr netip.Addr) bool {
	addr = addr.Unmap()
	r.mu.Lock()
	defer r.mu.Unlock()
	if found, ok := r.known[addr]; ok && time.Now().Before(found.until) {
		return found.own
	}
	own, err := r.ask(addr)
	if err != nil {
		return true
	}
	if r.known == nil || len(r.known) >= routesKnown {
		r.known = map[netip.Addr]route{}
	}
	r.known[addr] = route{own: own, until: time.Now().Add(routeLifetime)}
	return own
}

// ask looks up a route. The lock is held. After an error the socket is recreated, since an answer
// may be left in it.
func (r *routes) ask(addr netip.Addr) (own bool, err error) {
	if r.closed {
		return false, errClosed
	}
	if r.handle == nil {
		if err := r.open(); err != nil {
			return false, err
		}
	}
	found, err := r.handle.RouteGet(addr.AsSlice())
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return false, nil // there is no way there
	case err == nil && len(found) == 1:
		return found[0].Type != unix.RTN_UNICAST, nil
	default:
		r.drop()
		return false, fmt.Errorf("cannot look up the route to %s: %d answers: %w", addr, len(found),
			err)
	}
}
