package inet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A host is a network namespace in the machine's stead, so that a test sees all that changes in it
// and nobody else changes it.
type host struct {
	ns  netns.NsHandle
	net *netlink.Handle
}

func newHost(t testing.TB) *host {
	t.Helper()
	needRoot(t)
	here, err := netns.Get()
	must(t, err)
	defer func() { must(t, here.Close()) }()
	h := &host{}
	must(t, on(here, func() (err error) { h.ns, err = netns.New(); return err }))
	h.net, err = netlink.NewHandleAt(h.ns)
	must(t, err)
	t.Cleanup(func() { h.net.Close(); must(t, h.ns.Close()) })
	must(t, (&end{handle: h.net}).find("lo"))
	must(t, on(h.ns, func() error { return Sweep(t.Context(), "inet-t-") })) // of a test that was killed
	return h
}

// start makes an Inet beside the host.
func (h *host) start(t testing.TB, cfg Config) (in *Inet, err error) {
	t.Helper()
	err = on(h.ns, func() (err error) { in, err = New(t.Context(), cfg); return err })
	if err == nil {
		t.Cleanup(func() { must(t, in.Close()) })
	}
	return in, err
}

// state is all that an Inet could leave.
func (h *host) state(t testing.TB) (lines []string) {
	t.Helper()
	links, err := dump(h.net.LinkList)
	must(t, err)
	for _, l := range links {
		lines = append(lines, fmt.Sprintf("link %s %s", l.Attrs().Name, l.Attrs().Flags))
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := h.net.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		must(t, err)
		for _, r := range routes {
			lines = append(lines, "route "+r.String())
		}
		rules, err := h.net.RuleList(family)
		must(t, err)
		for _, r := range rules {
			lines = append(lines, "rule "+r.String())
		}
	}
	return append(lines, namespaces(t)...)
}

// namespaces are those of tests.
func namespaces(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(namesDir + "/inet-t-*")
	must(t, err)
	return files
}

func TestCloseLeavesNothing(t *testing.T) {
	h := newHost(t)
	before := h.state(t)
	in, err := h.start(t, Config{Name: "inet-t-close", Extra: []netip.Addr{private, metadata, six}})
	must(t, err)
	if got := namespaces(t); len(got) != 1 {
		t.Errorf("named namespaces: %v", got)
	}
	must(t, in.Origin(metadata))
	must(t, in.Close())
	if diff := cmp.Diff(before, h.state(t)); diff != "" {
		t.Error("Close:", diff)
	}

	// New fails when the namespace and the link are made: the host cannot have an IPv6 address.
	must(t, on(h.ns, func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0o644)
	}))
	if _, err := h.start(t, Config{Name: "inet-t-close", Extra: []netip.Addr{six}}); err == nil {
		t.Error("IPv6 works where there is none")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := on(h.ns, func() error { _, err := New(ctx, Config{Name: "inet-t-close"}); return err }); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if diff := cmp.Diff(before, h.state(t)); diff != "" {
		t.Error("New that fails:", diff)
	}
}

func TestSideBySide(t *testing.T) {
	h := newHost(t)
	first, err := h.start(t, Config{Name: "inet-t-one", Extra: []netip.Addr{private}})
	must(t, err)
	must(t, h.net.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan0"}, PeerName: "lan1"}))
	out := end{handle: h.net}
	must(t, out.find("lan0"))
	must(t, out.address(netip.MustParseAddr("192.168.7.1"), 24))
	must(t, out.address(netip.MustParseAddr("203.0.113.200"), 32))

	addrs := func(all ...string) (parsed []netip.Addr) {
		for _, addr := range all {
			parsed = append(parsed, netip.MustParseAddr(addr))
		}
		return parsed
	}
	prefix := netip.MustParsePrefix
	for want, cfg := range map[string]Config{
		`"inet-t-one": a process that is alive has one of this name`:                                {Name: "inet-t-one", Public: prefix("203.0.113.0/26")},
		`198.51.100.0/24 is taken: the host has 198.51.100.0/24, by the test internet "inet-t-one"`: {},
		`198.51.100.64/26 is taken: the host has 198.51.100.0/24`:                                   {Public: prefix("198.51.100.64/26")},
		`10.77.0.5/32 is taken: the host has 10.77.0.5/32, by the test internet "inet-t-one"`: {
			Public: prefix("203.0.113.0/26"), Extra: addrs("10.77.0.5")},
		`198.51.100.7/32 is taken: the host has 198.51.100.0/24`: {
			Public: prefix("203.0.113.0/26"), Extra: addrs("198.51.100.7")},
		`192.168.7.1/32 is taken: the host has 192.168.7.1/32, by link "lan0"`: {
			Public: prefix("203.0.113.0/26"), Extra: addrs("192.168.7.1")},
		`203.0.113.0/24 is taken: the host has 203.0.113.200/32`: {Public: prefix("203.0.113.0/24")},
		`198.18.0.0/30 is taken: the host has 198.18.0.0/30`: {
			Public: prefix("203.0.113.0/26"), Pair: prefix("198.18.0.0/30")},
	} {
		if cfg.Name == "" {
			cfg.Name = "inet-t-two"
		}
		before := h.state(t)
		if _, err := h.start(t, cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v\nwant: %s", cfg, err, want)
		}
		if diff := cmp.Diff(before, h.state(t)); diff != "" {
			t.Error(diff)
		}
	}

	second, err := h.start(t, Config{Name: "inet-t-two", Public: prefix("203.0.113.0/26"), Extra: addrs("192.168.7.9")})
	must(t, err)
	for _, in := range []*Inet{first, second} {
		at := netip.AddrPortFrom(in.Addr(7), 22)
		must(t, in.Listen(at))
		must(t, echoes(h, at))
		if got := in.Arrived(); len(got) != 2 || got[0].To != at {
			t.Errorf("arrived at %s: %v", at, got)
		}
	}
}

// echoes makes a connection from a namespace and uses it.
func echoes(from *host, at netip.AddrPort) error {
	return on(from.ns, func() error {
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			return err
		}
		if _, err = io.WriteString(c, "hello"); err == nil {
			_, err = io.ReadFull(c, make([]byte, 5))
		}
		return errors.Join(err, c.Close())
	})
}

// childEnv makes the test's program make an Inet of this name and wait to be killed.
const childEnv = "INET_TEST_CHILD"

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		if _, err := New(context.Background(), Config{Name: name}); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("ready")
		_, _ = os.Stdin.Read(make([]byte, 1)) // ends with the parent
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// child makes an Inet in another process, and returns how to kill that.
func (h *host) child(t *testing.T, name string) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	cmd.Stderr = os.Stderr
	_, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, on(h.ns, cmd.Start))
	kill = func() { _, _ = cmd.Process.Kill(), cmd.Wait() }
	t.Cleanup(kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	return kill
}

func TestLeftovers(t *testing.T) {
	h := newHost(t)
	before := h.state(t)
	sweep := func() { t.Helper(); must(t, on(h.ns, func() error { return Sweep(t.Context(), "inet-t-l") })) }
	kill := h.child(t, "inet-t-left")
	sweep()
	if _, err := h.start(t, Config{Name: "inet-t-left"}); !errors.Is(err, errInUse) { // so it stayed
		t.Errorf("beside one of the same name: %v", err)
	}
	kill()
	in, err := h.start(t, Config{Name: "inet-t-left"})
	must(t, err)
	must(t, in.Listen(netip.AddrPortFrom(in.Addr(7), 22)))
	must(t, echoes(h, netip.AddrPortFrom(in.Addr(7), 22)))
	must(t, in.Close())

	kill = h.child(t, "inet-t-left")
	kill()
	sweep()
	if diff := cmp.Diff(before, h.state(t)); diff != "" {
		t.Error(diff)
	}
	must(t, h.net.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "inet-t-lan"}, PeerName: "inet-t-lan2"}))
	sweep()
	if _, err := h.net.LinkByName("inet-t-lan"); err != nil {
		t.Errorf("another's link: %v", err)
	}
	if err := Sweep(t.Context(), ""); err == nil {
		t.Error("an empty prefix was accepted")
	}
}

// What a run that was killed has left gives way, whatever its name is; what is alive, or elsewhere, stays.
func TestLeftoversInTheWay(t *testing.T) {
	h := newHost(t)
	before := h.state(t)
	kill := h.child(t, "inet-t-left")
	if _, err := h.start(t, Config{Name: "inet-t-later"}); err == nil || !strings.Contains(err.Error(), `by the test internet "inet-t-left"`) {
		t.Errorf("beside one that is alive: %v", err)
	}
	kill()
	beside, err := h.start(t, Config{Name: "inet-t-beside", Public: netip.MustParsePrefix("203.0.113.0/26")})
	must(t, err)
	if got := namespaces(t); len(got) != 2 {
		t.Errorf("what is in nobody's way: %v", got)
	}
	later, err := h.start(t, Config{Name: "inet-t-later"})
	must(t, err)
	if got := namespaces(t); !slices.Equal(got, []string{namesDir + "/inet-t-beside", namesDir + "/inet-t-later"}) {
		t.Errorf("what was in the way: %v", got)
	}
	must(t, later.Listen(netip.AddrPortFrom(later.Addr(7), 22)))
	must(t, echoes(h, netip.AddrPortFrom(later.Addr(7), 22)))
	must(t, errors.Join(beside.Close(), later.Close()))
	if diff := cmp.Diff(before, h.state(t)); diff != "" {
		t.Error(diff)
	}
}

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

func TestValidate(t *testing.T) {
	prefix := netip.MustParsePrefix
	for want, cfg := range map[string]Config{
		"":                           {},
		"the name":                   {Name: "../x"},
		"the name ":                  {Name: "sixteen-letters-"},
		"range 198.51.100.0/27":      {Public: prefix("198.51.100.0/27")},
		"range 198.51.100.1/24":      {Public: prefix("198.51.100.1/24")},
		"range 2001:db8::/24":        {Public: prefix("2001:db8::/24")},
		"range 8.8.8.0/24":           {Public: prefix("8.8.8.0/24")},
		"range 192.0.0.0/16":         {Public: prefix("192.0.0.0/16")}, // begins and ends otherwise
		"pair 9.9.9.8/30":            {Pair: prefix("9.9.9.8/30")},
		"pair 10.0.0.0/31":           {Pair: prefix("10.0.0.0/31")},
		"address 1.1.1.1 is":         {Extra: []netip.Addr{netip.MustParseAddr("1.1.1.1")}},
		"address 127.0.0.1 is":       {Extra: []netip.Addr{netip.MustParseAddr("127.0.0.1")}},
		"address fe80::1 is":         {Extra: []netip.Addr{netip.MustParseAddr("fe80::1")}},
		"address ::ffff:10.0.0.1 is": {Extra: []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.1")}},
		"address 224.0.0.1 is":       {Extra: []netip.Addr{netip.MustParseAddr("224.0.0.1")}},
		"address 2600::1 is":         {Extra: []netip.Addr{netip.MustParseAddr("2600::1")}},
		"198.51.100.9 is there":      {Extra: []netip.Addr{netip.MustParseAddr("198.51.100.9")}},
		"10.77.0.5 is there":         {Extra: []netip.Addr{private, private}},
	} {
		err := cfg.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), strings.TrimSpace(want)) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func TestParse(t *testing.T) {
	four := func(protocol, fragment byte, options string, payload string) string {
		return string([]byte{0x45 + byte(len(options)/4)}) + "\x00\x00\x00\x00\x00\x00" + string([]byte{fragment}) +
			"\x40" + string([]byte{protocol}) + "\x00\x00\x0a\x00\x00\x01\xc6\x33\x64\x07" + options + payload
	}
	sixth := func(next byte, payload string) string {
		return "\x60\x00\x00\x00\x00\x00" + string([]byte{next}) + "\x40" +
			string(netip.MustParseAddr("fd00::1").AsSlice()) + string(six.AsSlice()) + payload
	}
	const ports = "\x12\x34\x00\x16"
	const udp = ports + "\x00\x09\x00\x00!"
	for packet, want := range map[string]string{
		four(6, 0, "", ports):                 "tcp 10.0.0.1 198.51.100.7 22 ",
		four(6, 0, "\x01\x01\x01\x01", ports): "tcp 10.0.0.1 198.51.100.7 22 ",
		four(17, 0, "", udp):                  "udp 10.0.0.1 198.51.100.7 22 !",
		four(17, 1, "", udp):                  "udp 10.0.0.1 198.51.100.7 0 ",
		four(6, 0, "", "\x12"):                "tcp 10.0.0.1 198.51.100.7 0 ",
		four(1, 0, "", "\x08\x00\x00\x00"):    "icmp 10.0.0.1 198.51.100.7 0 ",
		four(47, 0, "", ports):                "47 10.0.0.1 198.51.100.7 0 ",
		four(6, 0, "", "")[:19]:               "no",
		"":                                    "no",
		"\x00\x01\x08\x00":                    "no",
		sixth(6, ports):                       "tcp fd00::1 2001:db8:77::5 22 ",
		sixth(58, "\x80"):                     "icmp6 fd00::1 2001:db8:77::5 0 ",
		sixth(0, "\x11\x00\x00\x00\x00\x00\x00\x00"+udp):                                 "udp fd00::1 2001:db8:77::5 22 !",
		sixth(0, "\x2b\x00\x00\x00\x00\x00\x00\x00\x11\x00\x00\x00\x00\x00\x00\x00"+udp): "udp fd00::1 2001:db8:77::5 22 !",
		sixth(44, "\x11\x00\x00\x01\x00\x00\x00\x00"+udp):                                "udp fd00::1 2001:db8:77::5 22 !",
		sixth(44, "\x11\x00\x00\x08\x00\x00\x00\x00"+udp):                                "udp fd00::1 2001:db8:77::5 0 ",
		sixth(0, "\x11\xff\x00\x00\x00\x00\x00\x00"+udp):                                 "udp fd00::1 2001:db8:77::5 0 ",
	} {
		got := "no"
		if f, payload, ok := parse([]byte(packet)); ok {
			got = fmt.Sprintf("%s %s %s %d %s", f.Proto, f.Src, f.Dst, f.Port, payload)
		}
		if got != want {
			t.Errorf("%x: %q, want %q", packet, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("\x45" + strings.Repeat("\x00", 30)))
	f.Add([]byte("\x60" + strings.Repeat("\x00", 60)))
	f.Fuzz(func(t *testing.T, packet []byte) {
		before := slices.Clone(packet)
		flow, _, ok := parse(packet)
		if ok && (!flow.Src.IsValid() || !flow.Dst.IsValid() || flow.Proto == "") {
			t.Errorf("%+v", flow)
		}
		if !slices.Equal(before, packet) {
			t.Error("parse has changed the packet")
		}
	})
}
