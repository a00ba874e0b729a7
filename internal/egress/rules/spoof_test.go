package rules

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// All of these send frames as a container with NET_RAW could. Each test first sends what is honest, which
// must come through, so that a frame that is badly made proves nothing.

func (s *scene) gatewayMAC(t testing.TB, c *container) net.HardwareAddr {
	return s.world.host.link(t, s.bridgeOf(c)).Attrs().HardwareAddr
}

func TestSourceIsBoundToPort(t *testing.T) {
	s := newScene(t)
	s.apply(t)
	gateway := s.gatewayMAC(t, s.i1)
	frame := func(mac net.HardwareAddr, src, dst netip.Addr, port int, text string) []byte {
		return ethernet(gateway, mac, unix.ETH_P_IP, datagram(src, dst, port, text))
	}
	s.i1.send(t, "eth0",
		frame(s.i1.mac, s.i1.addr, s.i1.gateway, 53, "honest"), frame(s.i1.mac, s.i1.addr, public, otherPort, "honest"),
		frame(s.i1.mac, s.i2.addr, s.i1.gateway, 53, "neighbour"), frame(s.i1.mac, s.i2.addr, public, otherPort, "neighbour"),
		frame(s.i2.mac, s.i2.addr, s.i1.gateway, 53, "neighbour in full"), frame(s.i2.mac, s.i2.addr, public, otherPort, "neighbour in full"),
		frame(s.i2.mac, s.i1.addr, public, otherPort, "another's hardware"),
		frame(s.i1.mac, s.l1.addr, public, otherPort, "other bridge"),
		frame(s.i1.mac, s.i1.gateway, public, otherPort, "gateway"),
		frame(s.i1.mac, hostLAN, public, otherPort, "host"),
		frame(s.i1.mac, inetInside, s.i1.gateway, 53, "outside"),
		ethernet(gateway, s.i1.mac, 0x8100, append([]byte{0, 0, 8, 0}, datagram(s.i1.addr, public, otherPort, "in a VLAN")...)),
		ethernet(gateway, s.i1.mac, 0x88b5, []byte("no protocol")),
		frame(s.i1.mac, s.i1.addr, s.i1.gateway, 53, "honest at last"), frame(s.i1.mac, s.i1.addr, public, otherPort, "honest at last"))
	s.onlyHonest(t, s.host, s.inet)
}

// onlyHonest waits for the last of the frames and sees that no other came.
func (s *scene) onlyHonest(t *testing.T, logs ...*arrivals) {
	t.Helper()
	for _, log := range logs {
		waittest.Until(t, "honest at last", func() bool { return log.has("honest at last") })
		if all, honest := log.matching("udp"), log.matching("honest"); len(all) != len(honest) || len(honest) != 2 {
			t.Errorf("came: %q", all)
		}
	}
	s.outside.fence(t, s.world.host, "eth0")
	for _, text := range []string{"neighbour", "another's", "other bridge", "gateway", "host", "VLAN"} {
		if got := s.outside.matching(text); len(got) > 0 {
			t.Errorf("left the host: %q", got)
		}
	}
}

func TestARPIsBoundToPort(t *testing.T) {
	s := newScene(t)
	if err := s.i2.tcp(s.i2.gateway, 53); err != nil { // the host knows i2
		t.Fatal(err)
	}
	s.apply(t)
	onBridge, onNeighbour := s.world.host.tap(t, s.bridgeOf(s.i1)), s.i2.tap(t, "eth0")
	gateway, none := s.gatewayMAC(t, s.i1), make(net.HardwareAddr, 6)
	arp := func(dst, src net.HardwareAddr, p []byte) []byte { return ethernet(dst, src, unix.ETH_P_ARP, p) }
	me, it := s.i1, s.i2
	me.send(t, "eth0",
		arp(broadcast, me.mac, arpPacket(1, me.mac, me.addr, none, me.gateway)), // honest
		arp(broadcast, me.mac, arpPacket(2, me.mac, it.addr, none, it.addr)),
		arp(gateway, me.mac, arpPacket(2, me.mac, it.addr, gateway, me.gateway)),
		arp(gateway, it.mac, arpPacket(2, it.mac, it.addr, gateway, me.gateway)),
		arp(gateway, it.mac, arpPacket(2, me.mac, me.addr, gateway, me.gateway)),
		arp(gateway, me.mac, arpPacket(2, it.mac, me.addr, gateway, me.gateway)),
		arp(it.mac, me.mac, arpPacket(2, me.mac, me.gateway, it.mac, it.addr)),
		arp(broadcast, me.mac, arpPacket(1, me.mac, netip.IPv4Unspecified(), none, it.addr)),
		arp(it.mac, me.mac, arpPacket(1, me.mac, me.addr, none, it.addr)))
	onBridge.fence(t, s.world.host, s.bridgeOf(me))
	onNeighbour.fence(t, s.world.host, s.bridgeOf(me))
	waittest.Until(t, "the honest question", func() bool { return onBridge.has("arp 1 10.77.1.11 > 10.77.1.1") })
	// What the host itself sends out is seen too; it has its own hardware address.
	for _, line := range append(onBridge.matching("arp"), onNeighbour.matching("arp")...) {
		if strings.Contains(line, me.mac.String()) && line != "arp 1 10.77.1.11 > 10.77.1.1 from "+me.mac.String() {
			t.Errorf("came through: %s", line)
		}
	}
	if !it.udp(it.gateway, 53, "still here") {
		t.Error("the neighbour was cut off")
	}
}

// The host has many addresses; a container may ask who has its gateway's.
func TestARPTellsOfTheGatewayAlone(t *testing.T) {
	s := newScene(t)
	ask := func(who netip.Addr) string {
		tap := s.i1.tap(t, "eth0")
		s.i1.send(t, "eth0", ethernet(broadcast, s.i1.mac, unix.ETH_P_ARP,
			arpPacket(1, s.i1.mac, s.i1.addr, make(net.HardwareAddr, 6), who)))
		tap.fence(t, s.world.host, s.bridgeOf(s.i1))
		for _, line := range tap.matching("arp 2 " + who.String()) {
			return line
		}
		return ""
	}
	waittest.Until(t, "without rules the host tells", func() bool { return ask(hostLAN) != "" })
	s.apply(t)
	waittest.Until(t, "the gateway's answer", func() bool { return ask(s.i1.gateway) != "" })
	if got := ask(hostLAN); got != "" {
		t.Errorf("the host told of another address: %s", got)
	}
}

// A frame to a link-local group passes the bridge's hooks by.
func TestLinkLocalFrames(t *testing.T) {
	s := newScene(t)
	s.apply(t)
	if !s.i2.udp(s.i2.gateway, 53, "known") {
		t.Fatal("no DNS")
	}
	group := net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0x0e}
	for _, src := range []netip.Addr{s.i1.addr, inetInside, hostLAN} {
		s.i1.send(t, "eth0",
			ethernet(group, s.i2.mac, unix.ETH_P_IP, datagram(src, hostLAN, otherPort, "past the bridge")),
			ethernet(group, s.i2.mac, unix.ETH_P_IP, datagram(src, public, otherPort, "past the bridge")))
	}
	stolen := s.i1.tap(t, "eth0")
	c, err := s.i2.dial("udp", s.i2.gateway, 53)
	must(t, err)
	defer c.Close()
	if !echo(c, "mine") {
		t.Error("the neighbour's answers went elsewhere")
	}
	stolen.fence(t, s.world.host, s.bridgeOf(s.i1))
	if got := stolen.matching(s.i2.addr.String()); len(got) > 0 {
		t.Errorf("the neighbour's answers came to another: %q", got)
	}
	s.outside.fence(t, s.world.host, "eth0")
	if s.host.has("past the bridge") || s.outside.has("past the bridge") {
		t.Errorf("came through: %q", s.host.all())
	}
}

// The attack on what the bridge has learnt works where the option is off: so the test above is about it.
func TestLinkLocalFramesMisleadABridge(t *testing.T) {
	s := newScene(t)
	lie := ethernet(net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0x0e}, s.i2.mac, 0x88b5, []byte("I am i2"))
	where := func() (port int) {
		entries, err := s.world.host.net.NeighList(0, unix.AF_BRIDGE)
		must(t, err)
		for _, e := range entries {
			if e.HardwareAddr.String() == s.i2.mac.String() {
				port = e.LinkIndex
			}
		}
		return port
	}
	waittest.Until(t, "the bridge is misled", func() bool { // again and again: i2 says now and then where it is
		s.i1.send(t, "eth0", lie)
		return where() == s.world.host.link(t, s.i1.veth).Attrs().Index
	})
}

func TestOthersMayNotPoseAsContainers(t *testing.T) {
	s := newScene(t)
	s.apply(t)
	hostMAC := s.world.host.link(t, "eth0").Attrs().HardwareAddr
	mac := s.world.inet.link(t, "eth0").Attrs().HardwareAddr
	// From outside: a container's address, and the gateway as a target; then what is allowed.
	s.world.inet.send(t, "eth0",
		ethernet(hostMAC, mac, unix.ETH_P_IP, datagram(s.i1.addr, s.i1.gateway, 53, "as a container")),
		ethernet(hostMAC, mac, unix.ETH_P_IP, datagram(s.i1.addr, hostOutside, otherPort, "as a container")),
		ethernet(hostMAC, mac, unix.ETH_P_IP, datagram(inetInside, s.i1.gateway, 53, "to the filter")),
		ethernet(hostMAC, mac, unix.ETH_P_IP, datagram(inetInside, s.i1.addr, otherPort, "to a container")),
		ethernet(hostMAC, mac, unix.ETH_P_IP, datagram(inetInside, hostOutside, otherPort, "to the host")))
	waittest.Until(t, "the allowed datagram", func() bool { return s.host.has("to the host") })
	if s.host.has("as a container") || s.host.has("to the filter") {
		t.Errorf("came: %q", s.host.all())
	}
	tap := s.i1.tap(t, "eth0")
	if s.world.host.udpBriefly(s.i1.addr, otherPort, "from the host") {
		t.Error("the host reached a container")
	}
	tap.fence(t, s.world.host, s.bridgeOf(s.i1))
	if got := tap.matching("udp"); len(got) > 0 {
		t.Errorf("came to a container: %q", got)
	}
}

// A port that was not bound takes no part in ARP: not with the host, nor with a neighbour that is bound.
func TestUnboundPortHasNoARP(t *testing.T) {
	s := newScene(t)
	me, it := s.i1, s.i2
	none := make(net.HardwareAddr, 6)
	ask := func(from *container, who netip.Addr) []byte {
		return ethernet(broadcast, from.mac, unix.ETH_P_ARP, arpPacket(1, from.mac, from.addr, none, who))
	}
	heard := func() (answered, here, there bool) {
		mine, its := me.tap(t, "eth0"), it.tap(t, "eth0")
		me.send(t, "eth0", ask(me, me.gateway), ask(me, it.addr))
		it.send(t, "eth0", ask(it, me.addr))
		mine.fence(t, s.world.host, s.bridgeOf(me))
		its.fence(t, s.world.host, s.bridgeOf(it))
		return mine.has("arp 2 " + me.gateway.String()), mine.has("arp 1 " + it.addr.String()), its.has("arp 1 " + me.addr.String() + " > " + it.addr.String())
	}
	waittest.Until(t, "ARP without rules", func() bool {
		answered, here, there := heard()
		return answered && here && there
	})
	must(t, s.table.Apply(t.Context(), State{Containers: []netip.Addr{me.addr, it.addr},
		Bindings: []Binding{it.binding()}}))
	if answered, here, there := heard(); answered || here || there {
		t.Errorf("the host answered: %t; the neighbour was heard: %t; and heard: %t", answered, here, there)
	}
	must(t, s.table.Bind(me.binding()))
	waittest.Until(t, "the host's answer once bound", func() bool {
		answered, here, there := heard()
		if here || there {
			t.Errorf("bound, the neighbour was heard: %t; and heard: %t", here, there)
		}
		return answered
	})
}

// By link-local frames the host's end of a port would answer for all the host's addresses itself.
func TestLinkLocalARP(t *testing.T) {
	s := newScene(t)
	group := net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0x0e}
	answers := func() []string {
		tap := s.i1.tap(t, "eth0")
		s.i1.send(t, "eth0", ethernet(group, s.i1.mac, unix.ETH_P_ARP,
			arpPacket(1, s.i1.mac, s.i1.addr, make(net.HardwareAddr, 6), hostLAN)))
		tap.fence(t, s.world.host, s.bridgeOf(s.i1))
		return tap.matching("arp 2 " + hostLAN.String())
	}
	waittest.Until(t, "without rules an answer", func() bool { return len(answers()) > 0 })
	s.apply(t)
	if got := answers(); len(got) > 0 {
		t.Errorf("answered: %q", got)
	}
}
