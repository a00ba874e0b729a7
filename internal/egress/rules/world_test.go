package rules

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// The tests' world: network namespaces without names, which end with the process whatever happens to it.
//
//	i1 i2 ── daycare-isolated ┐
//	                          host ── inet
//	l1 l2 ── daycare-local ───┘
//
// The host forwards, masks nothing and filters nothing but by our rules, and inet knows the way back.
type world struct {
	host, inet     *space
	i1, i2, l1, l2 *container
	cfg            Config
	table          *Table
	log            *syncBuffer
}

// A space is a network namespace.
type space struct {
	name string
	fd   netns.NsHandle
	net  *netlink.Handle
}

// A container is a namespace whose eth0 ends in a port of one of the host's bridges.
type container struct {
	*space
	addr, gateway netip.Addr
	veth          string
	mac           net.HardwareAddr
}

var (
	public  = netip.MustParseAddr("203.0.113.9")     // inet's, as are the following two
	private = netip.MustParseAddr("10.9.9.9")        // in NonPublic of isolated
	cloud   = netip.MustParseAddr("169.254.169.254") // in NonPublic of both

	hostOutside = netip.MustParseAddr("198.51.100.1")
	inetInside  = netip.MustParseAddr("198.51.100.2")
	hostLAN     = netip.MustParseAddr("192.168.77.1") // on an interface that nobody else is on
)

const (
	isolated, local = "daycare-isolat", "daycare-local"
)

func testConfig() Config {
	prefixes := func(all ...string) (parsed []netip.Prefix) {
		for _, s := range all {
			parsed = append(parsed, netip.MustParsePrefix(s))
		}
		return parsed
	}
	never := []string{"127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4", "fc00::/7"}
	return Config{
		Table: "daycare",
		Bridges: []Bridge{
			{Name: isolated, Gateway: netip.MustParseAddr("10.77.1.1"), Subnet: netip.MustParsePrefix("10.77.1.0/24"),
				NonPublic: prefixes(append(never, "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")...)},
			{Name: local, Gateway: netip.MustParseAddr("10.77.2.1"), Subnet: netip.MustParsePrefix("10.77.2.0/24"),
				NonPublic: prefixes(never...)},
		},
		Questions: 1_000_000, Connections: 1_000_000, ClosedPorts: []uint16{25},
	}
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newSpace(t testing.TB, name string) *space {
	t.Helper()
	s := &space{name: name}
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		s.fd, err = netns.New()
	}()
	<-done
	must(t, err)
	s.net, err = netlink.NewHandleAt(s.fd)
	must(t, err)
	t.Cleanup(func() { s.net.Close(); _ = s.fd.Close() })
	s.up(t, "lo")
	return s
}

// do runs f in the namespace. Sockets that f makes stay there.
func (s *space) do(t testing.TB, f func() error) {
	t.Helper()
	must(t, s.try(f))
}

func (s *space) try(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := netns.Set(s.fd); err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}

func (s *space) sysctl(t testing.TB, settings ...string) {
	t.Helper()
	s.do(t, func() error {
		var faults []error
		for i := 0; i < len(settings); i += 2 {
			faults = append(faults, os.WriteFile("/proc/sys/net/"+settings[i], []byte(settings[i+1]), 0o644))
		}
		return errors.Join(faults...)
	})
}

func (s *space) link(t testing.TB, name string) netlink.Link {
	t.Helper()
	l, err := s.net.LinkByName(name)
	must(t, err)
	return l
}

func (s *space) up(t testing.TB, name string) {
	t.Helper()
	must(t, s.net.LinkSetUp(s.link(t, name)))
}

func (s *space) address(t testing.TB, link string, cidrs ...string) {
	t.Helper()
	for _, cidr := range cidrs {
		addr, err := netlink.ParseAddr(cidr)
		must(t, err)
		addr.Flags = 2 // IFA_F_NODAD: usable at once
		must(t, s.net.AddrReplace(s.link(t, link), addr))
	}
}

func (s *space) route(t testing.TB, to string, via netip.Addr) {
	t.Helper()
	dst, err := netlink.ParseIPNet(to)
	must(t, err)
	must(t, s.net.RouteAdd(&netlink.Route{Dst: dst, Gw: via.AsSlice()}))
}

// veth joins two namespaces. The first end's name is in s, the other's in peer.
func (s *space) veth(t testing.TB, name string, peer *space, peerName string, mac net.HardwareAddr) {
	t.Helper()
	must(t, s.net.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peerName, PeerHardwareAddr: mac,
		PeerNamespace: netlink.NsFd(int(peer.fd)),
	}))
	s.up(t, name)
	peer.up(t, peerName)
}

func newWorld(t testing.TB) *world {
	t.Helper()
	needRoot(t)
	w := &world{host: newSpace(t, "host"), inet: newSpace(t, "inet"), cfg: testConfig(), log: &syncBuffer{}}
	w.host.veth(t, "eth0", w.inet, "eth0", nil)
	w.host.veth(t, "lan0", w.host, "lan1", nil)
	w.host.address(t, "eth0", hostOutside.String()+"/24")
	w.host.address(t, "lan0", hostLAN.String()+"/24")
	w.inet.address(t, "eth0", inetInside.String()+"/24")
	for _, addr := range []netip.Addr{public, private, cloud} {
		w.inet.address(t, "lo", addr.String()+"/32")
		w.host.route(t, addr.String()+"/32", inetInside)
	}
	// Whatever the kernel itself would catch is let through: the rules are what is tested.
	w.host.sysctl(t, "ipv4/ip_forward", "1", "ipv4/conf/all/rp_filter", "0", "ipv4/conf/default/rp_filter", "0",
		"bridge/bridge-nf-call-iptables", "1", "bridge/bridge-nf-call-ip6tables", "1", "bridge/bridge-nf-call-arptables", "1")
	for i, b := range w.cfg.Bridges {
		must(t, w.host.net.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: b.Name}}))
		w.host.address(t, b.Name, b.Gateway.String()+"/24", fmt.Sprintf("fd00:%d::1/64", i+1))
		w.host.up(t, b.Name)
		w.inet.route(t, b.Subnet.String(), hostOutside)
	}
	w.i1, w.i2 = w.newContainer(t, 0, 11), w.newContainer(t, 0, 12)
	w.l1, w.l2 = w.newContainer(t, 1, 11), w.newContainer(t, 1, 12)
	w.cfg.NetNS = int(w.host.fd)
	w.cfg.Log = zerolog.New(w.log)
	var err error
	w.table, err = New(w.cfg)
	must(t, err)
	t.Cleanup(w.table.Close)
	return w
}

func (w *world) newContainer(t testing.TB, bridge, number int) *container {
	t.Helper()
	b := w.cfg.Bridges[bridge]
	c := &container{
		space: newSpace(t, fmt.Sprintf("%s-%d", b.Name, number)), gateway: b.Gateway,
		veth: fmt.Sprintf("veth%d%d", bridge, number), mac: net.HardwareAddr{2, 0x42, 10, 77, byte(bridge + 1), byte(number)},
	}
	bytes := b.Subnet.Addr().As4()
	bytes[3] = byte(number)
	c.addr = netip.AddrFrom4(bytes)
	w.host.veth(t, c.veth, c.space, "eth0", c.mac)
	must(t, w.host.net.LinkSetMaster(w.host.link(t, c.veth), w.host.link(t, b.Name)))
	c.address(t, "eth0", c.addr.String()+"/24", fmt.Sprintf("fd00:%d::%d/64", bridge+1, number))
	c.route(t, "0.0.0.0/0", b.Gateway)
	return c
}

// apply makes all four containers known and binds them.
func (w *world) apply(t testing.TB) {
	t.Helper()
	var state State
	for _, c := range w.containers() {
		state.Containers = append(state.Containers, c.addr)
		state.Bindings = append(state.Bindings, c.binding())
	}
	must(t, w.table.Apply(t.Context(), state))
}

func (w *world) containers() []*container { return []*container{w.i1, w.i2, w.l1, w.l2} }

func (c *container) binding() Binding { return Binding{Veth: c.veth, MAC: c.mac, Addr: c.addr} }

// syncBuffer is where the log goes.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(slices.Clone(b.buf.Bytes()))
}

// Check is what Keep does at each interval, without the repair.
func (t *Table) Check(ctx context.Context) (drift string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.check(ctx)
}
