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
