package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// scene is a world with services on it: everything that a container might reach and what has come there.
type scene struct {
	*world
	host, inet *arrivals // what came to their services
	outside    *tap      // what came to inet at all
}

const otherPort = 9999

func newScene(t testing.TB) *scene {
	t.Helper()
	s := &scene{world: newWorld(t), host: &arrivals{}, inet: &arrivals{}}
	for _, b := range s.cfg.Bridges {
		s.world.host.serveAt(t, s.host, netip.AddrPortFrom(b.Gateway, 53))
	}
	s.world.host.serve(t, s.host, otherPort)
	for _, port := range []int{22, 25, 53, 80, 443, 853, otherPort} {
		s.world.inet.serve(t, s.inet, port)
	}
	s.outside = s.world.inet.tap(t, "eth0")
	return s
}

// nothingLeft fails if anything of the container has come to inet.
func (s *scene) nothingLeft(t *testing.T, c *container) {
	t.Helper()
	s.outside.fence(t, s.world.host, "eth0")
	if leaked := s.outside.matching(c.addr.String() + " >"); len(leaked) > 0 {
		t.Errorf("came to inet: %q", leaked)
	}
}

// The host alone lets everything through: so what the other tests see refused is refused by the rules.
func TestWithoutRulesAllPasses(t *testing.T) {
	s := newScene(t)
	for _, c := range s.containers() {
		for _, to := range []netip.Addr{public, private, cloud, hostLAN, hostOutside, c.gateway} {
			if err := c.tcp(to, otherPort); err != nil {
				t.Errorf("%s: tcp to %v: %v", c.name, to, err)
			}
			if !c.udp(to, otherPort, "hello") {
				t.Errorf("%s: udp to %v", c.name, to)
			}
		}
	}
	if !s.i1.udp(netip.MustParseAddr("fd00:1::1"), otherPort, "six") {
		t.Error("no IPv6 to the gateway")
	}
}

// hostIsClosedTo tries all the host's addresses.
func (s *scene) hostIsClosedTo(t *testing.T, c *container) {
	t.Helper()
	s.host.clear()
	other := s.cfg.Bridges[0].Gateway
	if other == c.gateway {
		other = s.cfg.Bridges[1].Gateway
	}
	for _, to := range []netip.Addr{c.gateway, other, hostLAN, hostOutside} {
		ports := []int{otherPort}
		if to != c.gateway {
			ports = append(ports, 53)
		}
		for _, port := range ports {
			if err := c.tcp(to, port); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s: tcp to %v port %d: %v", c.name, to, port, err)
			}
			if c.udpBriefly(to, port, "in") {
				t.Errorf("%s: udp to %v port %d came through", c.name, to, port)
			}
		}
		c.ping(t, to)
	}
	if len(s.host.all()) > 0 {
		t.Errorf("%s: the host was reached: %q", c.name, s.host.all())
	}
	if !c.udp(c.gateway, 53, "question") {
		t.Errorf("%s: and the allowed case fails", c.name)
	}
}

func TestPublicAddressesAreReached(t *testing.T) {
	s := newScene(t)
	s.apply(t)
	may := func(c *container, to netip.Addr, want bool) {
		t.Helper()
		ask := c.udp
		if !want {
			ask = c.udpBriefly
		}
		for _, port := range []int{22, 80, 443, otherPort} {
			if err := c.tcp(to, port); (err == nil) != want {
				t.Errorf("%s: tcp to %v port %d: %v", c.name, to, port, err)
			}
			if ask(to, port, "out") != want {
				t.Errorf("%s: udp to %v port %d: want %t", c.name, to, port, want)
			}
		}
		c.ping(t, to)
		if from := c.addr.String() + " > " + to.String(); want {
			waittest.Until(t, "icmp "+from, func() bool { return s.outside.has("icmp " + from) })
		} else if s.outside.fence(t, s.world.host, "eth0"); s.outside.has(from) {
			t.Errorf("%s: came from it to %v: %q", c.name, to, s.outside.matching(from))
		}
	}
	may(s.i1, public, true)
	may(s.i1, private, false)
	may(s.i1, cloud, false)
	may(s.l1, public, true)
	may(s.l1, private, true)
	may(s.l1, cloud, false)
	s.hostIsClosedTo(t, s.i1)
	s.hostIsClosedTo(t, s.l1)
	if err := s.i1.tcp(s.i1.gateway, 53); err != nil {
		t.Errorf("DNS by TCP: %v", err)
	}
}

// What is excluded later is not reached any more, also by what is open, and stays so when the rules are repaired.
func TestExclude(t *testing.T) {
	s := newScene(t)
	s.apply(t)
	flow, err := s.i1.dial("tcp", public, 443)
	must(t, err)
	defer flow.Close()
	if !echo(flow, "before") {
		t.Fatal("a public address does not answer")
	}
	for range 2 { // once more is nothing more
		must(t, s.table.Exclude([]netip.Prefix{netip.PrefixFrom(public, 32)}))
	}
	if echoBriefly(flow, "after") {
		t.Error("a connection goes on to what is excluded")
	}
	excluded := func(when string) {
		t.Helper()
		for _, c := range []*container{s.i1, s.l1} {
			if err := c.tcp(public, 443); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s: %s: %v", when, c.name, err)
			}
		}
		inTune(t, s.table)
	}
	excluded("excluded")
	s.apply(t)
	excluded("applied again")
	if err := s.l1.tcp(private, 443); err != nil {
		t.Errorf("and what is not excluded: %v", err)
	}
}

func TestContainersHaveNoNeighbours(t *testing.T) {
	s := newScene(t)
	heard := &arrivals{}
	for _, c := range s.containers() {
		c.serve(t, heard, otherPort)
	}
	if err := s.i1.tcp(s.i2.addr, otherPort); err != nil {
		t.Fatalf("without rules: %v", err)
	}
	waittest.Until(t, "the neighbour hears of it", func() bool { return heard.has("tcp") })
	s.apply(t)
	heard.clear()
	for _, from := range s.containers() {
		for _, to := range s.containers() {
			if from == to {
				continue
			}
			tap := to.tap(t, "eth0")
			if from.tcpBriefly(to.addr, otherPort) == nil || from.udpBriefly(to.addr, otherPort, "psst") {
				t.Errorf("%s reached %s", from.name, to.name)
			}
			from.ping(t, to.addr)
			tap.fence(t, s.world.host, s.bridgeOf(to))
			if got := tap.matching(from.addr.String() + " >"); len(got) > 0 {
				t.Errorf("came from %s to %s: %q", from.name, to.name, got)
			}
		}
		if !from.udp(from.gateway, 53, "question") {
			t.Errorf("%s: the allowed case fails", from.name)
		}
	}
	if len(heard.all()) > 0 {
		t.Errorf("containers heard %q", heard.all())
	}
}

func (s *scene) bridgeOf(c *container) string { return s.cfg.mustBridgeOf(c.addr).Name }

func TestIPv6IsDropped(t *testing.T) {
	s := newScene(t)
	gateway, neighbour := netip.MustParseAddr("fd00:1::1"), netip.MustParseAddr("fd00:1::12")
	heard := &arrivals{}
	s.i2.serve(t, heard, otherPort)
	if !s.i1.udp(gateway, otherPort, "six") || !s.i1.udp(neighbour, otherPort, "six") {
		t.Fatal("without rules IPv6 does not work")
	}
	s.apply(t)
	s.host.clear()
	heard.clear()
	if s.i1.udpBriefly(gateway, otherPort, "six") || s.i1.udpBriefly(neighbour, otherPort, "six") || len(s.host.all())+len(heard.all()) > 0 {
		t.Errorf("IPv6 came through: %q %q", s.host.all(), heard.all())
	}
	if !s.i1.udp(public, otherPort, "four") {
		t.Error("and IPv4 does not")
	}
}

// Mail to other servers is closed unless the operator has opened it.
func TestClosedPorts(t *testing.T) {
	s := newScene(t)
	s.apply(t)
	if err := s.i1.tcp(public, 25); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("tcp 25: %v", err)
	}
	s.nothingLeft(t, s.i1)
	if err := s.i1.tcp(public, 22); err != nil {
		t.Errorf("tcp 22: %v", err)
	}
	s.cfg.ClosedPorts = nil
	table, err := New(s.cfg)
	must(t, err)
	defer table.Close()
	s.table = table
	s.apply(t)
	if err := s.i1.tcp(public, 25); err != nil {
		t.Errorf("opened, tcp 25: %v", err)
	}
}

// One container takes neither the DNS filter's time nor the host's table of flows.
func TestOneContainerIsBounded(t *testing.T) {
	s := newScene(t)
	const flows = 20
	s.cfg.Questions, s.cfg.Connections = 50, flows
	table, err := New(s.cfg)
	must(t, err)
	defer table.Close()
	s.table = table
	s.apply(t)
	inTune(t, table)
	hostMAC := s.gatewayMAC(t, s.i1)
	var frames [][]byte
	for i := range 1000 {
		question := datagram(s.i1.addr, s.i1.gateway, 53, fmt.Sprint("flood ", i))
		question[20], question[21] = byte(10+i>>8), byte(i) // each from a port of its own
		out := datagram(s.i1.addr, public, otherPort, fmt.Sprint("flood ", i))
		out[20], out[21] = byte(10+i>>8), byte(i)
		frames = append(frames, ethernet(hostMAC, s.i1.mac, 0x0800, question), ethernet(hostMAC, s.i1.mac, 0x0800, out))
	}
	s.i1.send(t, "eth0", frames...)
	s.outside.fence(t, s.world.host, "eth0")
	if entries, err := flowsIn(s.table, s.i1.addr); err != nil || len(entries) > flows || len(entries) < flows*3/4 {
		t.Errorf("%d flows are tracked, not %d: %v", len(entries), flows, err)
	}
	if came := len(s.host.matching("flood")); came > flows {
		t.Errorf("%d questions came to the filter", came)
	}
	if !s.i2.udp(s.i2.gateway, 53, "question") || s.i2.tcp(public, 443) != nil {
		t.Error("another container is bounded with it")
	}
	inTune(t, table)
}
