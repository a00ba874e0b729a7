package rules

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/mdlayher/netlink"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// What is not known reaches nothing; each step opens what it should and no more.
func TestLifeOfAContainer(t *testing.T) {
	s := newScene(t)
	must(t, s.table.Apply(t.Context(), State{}))
	c := s.i1
	reaches := func(when string, want bool) {
		t.Helper()
		ask, connect := c.udp, c.tcp
		if !want { // and nobody is told so
			ask, connect = c.udpBriefly, c.tcpBriefly
		}
		if got := ask(c.gateway, 53, "question"); got != want {
			t.Errorf("%s: DNS %t", when, got)
		}
		if err := connect(public, 443); (err == nil) != want {
			t.Errorf("%s: public: %v", when, err)
		}
		if when != "bound" && when != "removed" { // what was said while it was bound may still be coming
			s.nothingLeft(t, c)
		}
	}
	reaches("unknown", false)
	if err := s.table.Bind(c.binding()); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("bound before it was added: %v", err)
	}
	must(t, s.table.Add(c.addr))
	must(t, s.table.Add(c.addr))
	reaches("added, not bound", false)
	wrong := c.binding()
	for _, veth := range []string{s.l1.veth, "eth0", "missing"} {
		wrong.Veth = veth
		if s.table.Bind(wrong) == nil {
			t.Errorf("bound to %s", veth)
		}
	}
	must(t, s.table.Bind(c.binding()))
	// The container's kernel asked in vain who the gateway is, and asks again after a second.
	waittest.Until(t, "an answer once bound", func() bool { return c.udp(c.gateway, 53, "question") })
	reaches("bound", true)
	inTune(t, s.table)
	must(t, s.table.Remove(c.addr))
	must(t, s.table.Remove(c.addr))
	reaches("removed", false)
	inTune(t, s.table)
}

func inTune(t *testing.T, table *Table) {
	t.Helper()
	table.mu.Lock()
	table.verified = 0 // list, do not count
	table.mu.Unlock()
	if drift, err := table.Check(t.Context()); err != nil || drift != "" {
		t.Errorf("check: %q, %v", drift, err)
	}
}

// An unbound port on our bridge reaches neither host nor inet nor, by IPv4, another port.
func TestUnboundPortIsClosed(t *testing.T) {
	s := newScene(t)
	must(t, s.table.Apply(t.Context(), State{Containers: []netip.Addr{s.i1.addr, s.i2.addr, s.l1.addr},
		Bindings: []Binding{s.l1.binding()}}))
	heard := &arrivals{}
	s.i2.serve(t, heard, otherPort)
	s.hostIsShutTo(t, s.i1)
	if s.i1.tcpBriefly(s.i2.addr, otherPort) == nil || s.i1.udpBriefly(s.i2.addr, otherPort, "psst") || len(heard.all()) > 0 {
		t.Errorf("the other unbound port was reached: %q", heard.all())
	}
	s.nothingLeft(t, s.i1)
	if !s.l1.udp(public, otherPort, "out") {
		t.Error("and the bound one reaches nothing")
	}
}

func (s *scene) hostIsShutTo(t *testing.T, c *container) {
	t.Helper()
	if c.udpBriefly(c.gateway, 53, "q") || c.tcpBriefly(c.gateway, 53) == nil || c.udpBriefly(hostLAN, otherPort, "q") {
		t.Errorf("%s reached the host: %q", c.name, s.host.all())
	}
}

func TestRemoveEndsFlows(t *testing.T) {
	s := newScene(t)
	s.apply(t)
	direct, err := s.i1.dial("tcp", public, otherPort)
	must(t, err)
	defer direct.Close()
	other, err := s.i2.dial("tcp", public, otherPort)
	must(t, err)
	defer other.Close()
	if !echo(direct, "before") || !echo(other, "before") {
		t.Fatal("no flows to begin with")
	}
	must(t, s.table.Remove(s.i1.addr))
	s.outside.fence(t, s.world.host, "eth0") // what came before has been seen
	s.outside.clear()
	if echoBriefly(direct, "after") {
		t.Error("the flow goes on")
	}
	s.nothingLeft(t, s.i1)
	if !echo(other, "after") {
		t.Error("another's flow has ended")
	}
}

// flowsIn returns the flows of an address.
func flowsIn(table *Table, addr netip.Addr) (entries [][]netlink.Attribute, err error) {
	err = table.track(func(sock *netlink.Conn) (err error) {
		entries, err = flowsOf(sock, addr)
		return err
	})
	return entries, err
}

// The next owner of an address has nothing of the flows of the one before: not even when it uses the same
// ports, and not what others still send.
func TestAddressIsReusedClean(t *testing.T) {
	s := newScene(t)
	s.apply(t)
	c := s.i1
	from := &net.UDPAddr{IP: c.addr.AsSlice(), Port: 5555}
	var old *net.UDPConn
	c.do(t, func() (err error) {
		old, err = net.DialUDP("udp", from, &net.UDPAddr{IP: public.AsSlice(), Port: otherPort})
		return err
	})
	if !echo(old, "first owner") {
		t.Fatal("no flow to begin with")
	}
	old.Close()
	must(t, s.table.Remove(c.addr))
	must(t, s.table.Forget(c.addr))
	if entries, err := flowsIn(s.table, c.addr); err != nil || len(entries) > 0 {
		t.Errorf("still tracked: %v %v", entries, err)
	}
	must(t, s.table.Add(c.addr))
	must(t, s.table.Bind(c.binding()))
	tap := c.tap(t, "eth0")
	mac, hostMAC := s.world.inet.link(t, "eth0").Attrs().HardwareAddr, s.world.host.link(t, "eth0").Attrs().HardwareAddr
	late := datagram(public, c.addr, 5555, "late answer")
	late[20], late[21] = otherPort>>8, otherPort&0xff
	s.world.inet.send(t, "eth0", ethernet(hostMAC, mac, 0x0800, late))
	tap.fence(t, s.world.host, s.bridgeOf(c))
	if tap.has("late answer") {
		t.Error("the new owner got the old one's answer")
	}
	if !c.udp(c.gateway, 53, "question") {
		t.Error("and the allowed case fails")
	}
}

func TestForgettingSparesOthers(t *testing.T) {
	s := newScene(t)
	s.apply(t)
	for how, forget := range map[string]func(*netlink.Conn, netip.Addr) error{
		"by filter": forgetAtOnce, "one by one": forgetOneByOne, "as it is done": forget,
	} {
		for _, c := range s.containers() {
			if !c.udp(c.gateway, 53, "question") || c.tcp(public, 443) != nil {
				t.Fatal("no flows to begin with")
			}
		}
		must(t, s.table.track(func(sock *netlink.Conn) error { return forget(sock, s.i1.addr) }))
		for _, c := range s.containers() {
			entries, err := flowsIn(s.table, c.addr)
			must(t, err)
			if (len(entries) == 0) != (c == s.i1) {
				t.Errorf("%s: %s has %d flows", how, c.name, len(entries))
			}
		}
	}
}

// A service that comes after another forgets what belongs to nobody any more, and nothing else.
func TestStrangersAreForgotten(t *testing.T) {
	s := newScene(t)
	s.apply(t)
	for _, c := range s.containers() {
		if !c.udp(c.gateway, 53, "question") || c.tcp(public, 443) != nil {
			t.Fatal("no flows to begin with")
		}
	}
	var host *net.UDPConn
	s.world.host.do(t, func() (err error) {
		host, err = net.DialUDP("udp", nil, &net.UDPAddr{IP: public.AsSlice(), Port: otherPort})
		return err
	})
	defer host.Close()
	if !echo(host, "from the host") {
		t.Fatal("no flow of the host to begin with")
	}
	must(t, s.table.Remove(s.i1.addr))
	must(t, s.table.ForgetStrangers())
	for _, c := range s.containers() {
		entries, err := flowsIn(s.table, c.addr)
		must(t, err)
		if (len(entries) == 0) != (c == s.i1) {
			t.Errorf("%s has %d flows", c.name, len(entries))
		}
	}
	own, _ := netip.AddrFromSlice(host.LocalAddr().(*net.UDPAddr).IP.To4())
	if entries, err := flowsIn(s.table, own); err != nil || len(entries) == 0 {
		t.Errorf("the host's own flow is tracked: %v, %v", entries, err)
	}
}

// Two tables on one host, as those of two services or of two networks, leave each other's containers be.
func TestTablesSideBySide(t *testing.T) {
	s := newScene(t)
	tables := make([]*Table, len(s.cfg.Bridges))
	for i, b := range s.cfg.Bridges {
		cfg := s.cfg
		cfg.Table, cfg.Bridges = "daycare-"+b.Name[len(b.Name)-3:], []Bridge{b}
		var err error
		tables[i], err = New(cfg)
		must(t, err)
		t.Cleanup(tables[i].Close)
	}
	ours := []*container{s.i1, s.l1}
	for i, c := range ours {
		must(t, tables[i].Apply(t.Context(), State{Containers: []netip.Addr{c.addr}, Bindings: []Binding{c.binding()}}))
	}
	for i, c := range ours {
		if !c.udp(c.gateway, 53, "question") {
			t.Errorf("table %d: no DNS", i)
		}
		if err := c.tcp(public, 443); err != nil {
			t.Errorf("table %d: public: %v", i, err)
		}
		if c.udpBriefly(c.gateway, otherPort, "question") || c.tcp(cloud, otherPort) == nil || c.tcpBriefly(ours[1-i].addr, otherPort) == nil || c.tcpBriefly(ours[1-i].gateway, otherPort) == nil {
			t.Errorf("table %d: more than that", i)
		}
		inTune(t, tables[i])
	}
}
