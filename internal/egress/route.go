package egress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// routes asks the kernel where it would send what is for an address. The guard asks before each
// connection, so the socket stays open.
type routes struct {
	mu     sync.Mutex
	socket *netlink.Conn // nil after a fault, and after close
	closed bool
	known  map[netip.Addr]route
}

// route is what the kernel said, and until when that is good enough.
type route struct {
	own   bool
	until time.Time
}

const (
	// routeLifetime is how late an address that the host was given is known to be its own. A program that
	// opens one connection after the other to the same server is what it is for.
	routeLifetime = time.Second
	routesKnown   = 1024
)

func openRoutes() (*routes, error) {
	r := &routes{}
	return r, r.dial()
}

func (r *routes) dial() (err error) {
	if r.socket, err = netlink.Dial(unix.NETLINK_ROUTE, nil); err != nil {
		r.socket = nil
		return fmt.Errorf("cannot ask the kernel for routes: %w", err)
	}
	return nil
}

func (r *routes) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed, r.known = true, nil
	r.drop()
}

func (r *routes) drop() {
	if r.socket != nil {
		_ = r.socket.Close()
		r.socket = nil
	}
}

// own says whether the kernel would deliver to the host itself. What cannot be known is.
func (r *routes) own(addr netip.Addr) bool {
	addr = addr.Unmap()
	r.mu.Lock()
	defer r.mu.Unlock()
	if found, ok := r.known[addr]; ok && time.Now().Before(found.until) {
		return found.own
	}
	kind, err := r.kind(addr)
	nowhere := errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH)
	if err != nil && !nowhere {
		return true
	}
	found := route{own: err == nil && kind != unix.RTN_UNICAST, until: time.Now().Add(routeLifetime)}
	if r.known == nil || len(r.known) >= routesKnown {
		r.known = map[netip.Addr]route{}
	}
	r.known[addr] = found
	return found.own
}

// kind is the type of the route to an address, of those of rtnetlink(7). The lock is held.
func (r *routes) kind(addr netip.Addr) (byte, error) {
	if r.closed {
		return 0, errors.New("no more routes are asked for")
	}
	if r.socket == nil {
		if err := r.dial(); err != nil {
			return 0, err
		}
	}
	answers, err := r.ask(addr)
	if err != nil {
		if answer := (*netlink.OpError)(nil); !errors.As(err, &answer) || answer.Sequence == 0 {
			r.drop() // there was no answer, and it may still come
		}
		return 0, err
	}
	if len(answers) != 1 || answers[0].Header.Type != unix.RTM_NEWROUTE || len(answers[0].Data) < unix.SizeofRtMsg {
		return 0, errors.New("the kernel did not answer with one route")
	}
	return answers[0].Data[typeInRtMsg], nil
}

// typeInRtMsg is where rtm_type is in a struct rtmsg.
const typeInRtMsg = 7

// routePatience bounds the kernel's answer, for which others wait: it comes within microseconds.
const routePatience = 500 * time.Millisecond

func (r *routes) ask(addr netip.Addr) ([]netlink.Message, error) {
	question := make([]byte, unix.SizeofRtMsg)
	question[0], question[1] = unix.AF_INET, byte(addr.BitLen())
	if addr.Is6() {
		question[0] = unix.AF_INET6
	}
	binary.NativeEndian.PutUint32(question[8:], unix.RTM_F_LOOKUP_TABLE)
	parts, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.RTA_DST, Data: addr.AsSlice()}})
	if err != nil {
		return nil, err
	}
	if err := r.socket.SetDeadline(time.Now().Add(routePatience)); err != nil {
		return nil, err
	}
	return r.socket.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETROUTE, Flags: netlink.Request},
		Data:   append(question, parts...),
	})
}
