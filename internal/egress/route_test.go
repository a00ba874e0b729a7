package egress

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/waittest"
)

type brokenRoutes struct{}

func (brokenRoutes) RouteGet(net.IP) ([]netlink.Route, error) { return nil, unix.EBADF }
func (brokenRoutes) Close()                                   {}

// The kernel's routes say what the host's own addresses are, also those that no interface has.
func TestOwnAddresses(t *testing.T) {
	host, outside := newTestNetns(t), newTestNetns(t)
	lo, err := host.net.LinkByName("lo")
	must(t, err)
	must(t, host.net.LinkSetUp(lo))
	host.veth(t, "out", 0, outside, "in")
	out, err := host.net.LinkByName("out")
	must(t, err)
	must(t, host.net.LinkSetUp(out))
	address, err := netlink.ParseAddr("203.0.113.5/24")
	must(t, err)
	must(t, host.net.AddrAdd(out, address))
	six, err := netlink.ParseAddr("2001:db8::5/64")
	must(t, err)
	six.Flags = unix.IFA_F_NODAD // it is the host's soon: the kernel adds its route a moment later
	must(t, host.net.AddrAdd(out, six))
	waittest.Until(t, "the kernel has a route to the host's IPv6 address", func() bool {
		found, err := host.net.RouteGet(six.IP)
		return err == nil && len(found) == 1 && found[0].Type == unix.RTN_LOCAL
	})
	for to, kind := range map[string]int{"198.51.100.0/24": unix.RTN_UNICAST, "192.0.2.0/24": unix.RTN_LOCAL, "192.0.3.0/24": unix.RTN_BLACKHOLE, "192.0.4.0/24": unix.RTN_UNREACHABLE} {
		_, subnet, err := net.ParseCIDR(to)
		must(t, err)
		route := &netlink.Route{Dst: subnet, Type: kind}
		if kind == unix.RTN_UNICAST || kind == unix.RTN_LOCAL {
			route.LinkIndex = out.Attrs().Index
		}
		if kind == unix.RTN_LOCAL {
			route.Table, route.Scope = unix.RT_TABLE_LOCAL, netlink.SCOPE_HOST
		}
		must(t, host.net.RouteAdd(route))
	}

	var r *routes
	must(t, host.within(func() (err error) {
		r, err = openRoutes()
		return err
	}))
	own := func(addr string) (is bool) {
		must(t, host.within(func() error {
			is = r.own(netip.MustParseAddr(addr))
			return nil
		}))
		return is
	}
	for addr, want := range map[string]bool{
		"203.0.113.5": true, "::ffff:203.0.113.5": true, "2001:db8::5": true, "127.0.0.1": true, "127.9.9.9": true, "::1": true,
		"203.0.113.255": true, "192.0.2.77": true, "192.0.3.1": true,
		"203.0.113.6": false, "198.51.100.1": false, "2001:db8::6": false,
		"192.0.4.1": false, "8.8.8.8": false, "2001:db9::1": false, // no way there
	} {
		if got := own(addr); got != want {
			t.Errorf("%s is the host's own: %v", addr, got)
		}
	}

	given, err := netlink.ParseAddr("203.0.113.6/24")
	must(t, err)
	must(t, host.net.AddrAdd(out, given))
	waittest.Until(t, "an address that the host is given becomes its own", func() bool { return own("203.0.113.6") })

	r.handle.Close()
	r.handle = brokenRoutes{} // whatever breaks it
	if !own("203.0.113.7") {
		t.Error("what could not be asked is not the host's own")
	}
	if own("203.0.113.7") {
		t.Error("it is not asked again")
	}
	for i := range 2 * routesKnown {
		own(netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}).String())
		if len(r.known) > routesKnown {
			t.Fatalf("%d answers are kept", len(r.known))
		}
	}
	r.close()
	if !own("203.0.113.5") || !own("203.0.113.8") {
		t.Error("addresses are not the host's own when they are asked about after the end")
	}
}
