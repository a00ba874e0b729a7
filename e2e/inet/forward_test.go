package inet

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A container's packets are forwarded, with an address of its own that nobody masquerades.
func TestForwarded(t *testing.T) {
	h, container := newHost(t), newHost(t)
	must(t, on(h.ns, func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644) }))
	must(t, h.net.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "docker0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(container.ns)),
	}))
	bridge, eth0 := end{handle: h.net}, end{handle: container.net}
	must(t, bridge.find("docker0"))
	must(t, eth0.find("eth0"))
	must(t, bridge.address(netip.MustParseAddr("172.17.0.1"), 16))
	inside := netip.MustParseAddr("172.17.0.2")
	must(t, eth0.address(inside, 16))
	must(t, eth0.route(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("172.17.0.1")))
	must(t, eth0.ready(t.Context()))
	must(t, bridge.ready(t.Context()))

	in, err := h.start(t, Config{Name: "inet-t-fwd", Extra: []netip.Addr{metadata}})
	must(t, err)
	at := netip.AddrPortFrom(metadata, 80)
	must(t, in.Listen(at))
	capture, err := in.Capture()
	must(t, err)
	must(t, echoes(container, at))
	for _, a := range in.Arrived() {
		if a.From.Addr() != inside || a.To != at {
			t.Errorf("arrived: %+v", a)
		}
	}
	for i := range 20 {
		must(t, on(container.ns, func() error {
			c, err := net.Dial("udp", "198.51.100.1:5000")
			if err != nil {
				return err
			}
			_, err = c.Write([]byte("nobody listens"))
			return errors.Join(err, c.Close())
		}))
		must(t, capture.Sync(t.Context()))
		if got := capture.Seen(Flow{Proto: "udp", Src: inside, Port: 5000}); got != i+1 {
			t.Fatalf("after %d packets, %d were seen", i+1, got)
		}
	}
}

// What has a public source, which must be forged, gets no answer.
func TestNoWayOut(t *testing.T) {
	h := newHost(t)
	in, err := h.start(t, Config{Name: "inet-t-out"})
	must(t, err)
	inside, err := netlink.NewHandleAt(in.space.inside)
	must(t, err)
	defer inside.Close()
	for addr, want := range map[string]error{"172.17.0.2": nil, "198.18.0.1": nil, "9.9.9.9": unix.ENETUNREACH, "2620:fe::9": unix.ENETUNREACH} {
		if _, err := inside.RouteGet(net.ParseIP(addr)); !errors.Is(err, want) {
			t.Errorf("route to %s: %v", addr, err)
		}
	}
}
