package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec/networks"
)

// testParty is of a container that may reach names, and that no other user has.
func testParty(user string, domains ...string) networks.Party {
	return networks.Party{
		Name: fmt.Sprint(user, "-", domains), User: user,
		Egress: networks.Egress{Profile: "isolated", Domains: domains},
	}
}

func testEndpoint(t *testing.T, user string, domains ...string) *endpoint {
	t.Helper()
	ep, err := newEndpoint(testParty(user, domains...))
	if err != nil {
		t.Fatal(err)
	}
	return ep
}

func testEndpoints(subnet string) *endpoints {
	prefix := netip.MustParsePrefix(subnet)
	es := &endpoints{}
	es.init(networks.Network{Profile: "isolated", Bridge: "b0", Subnet: prefix, Gateway: prefix.Addr().Next()})
	return es
}

// Every address but those of the network itself is given out, each once, and one that was given back as
// late as possible.
func TestAddresses(t *testing.T) {
	es := testEndpoints("10.1.2.0/29")
	var taken []netip.Addr
	var held []*endpoint
	for i := range 5 {
		ep := testEndpoint(t, fmt.Sprint("c", i), "example.org")
		if err := es.register(ep); err != nil {
			t.Fatal(err)
		}
		taken, held = append(taken, ep.addr), append(held, ep)
	}
	if got := fmt.Sprint(taken); got != "[10.1.2.2 10.1.2.3 10.1.2.4 10.1.2.5 10.1.2.6]" {
		t.Error(got)
	}
	if err := es.register(testEndpoint(t, "more", "example.org")); !errors.Is(err, errdefs.ErrResourceExhausted) {
		t.Errorf("full: %v", err)
	}
	es.unregister(held[2])
	if err := es.register(testEndpoint(t, "c2", "example.org")); !errors.Is(err, errdefs.ErrResourceExhausted) {
		t.Errorf("an address was given out that is not free: %v", err)
	}
	es.release(held[3])
	es.release(held[0])
	es.release(held[0])
	if err := es.register(testEndpoint(t, "c1", "example.org")); !errors.Is(err, errdefs.ErrAlreadyExists) {
		t.Errorf("twice: %v", err)
	}
	for _, want := range []netip.Addr{taken[0], taken[3]} {
		ep := testEndpoint(t, "again "+want.String(), "example.org")
		if err := es.register(ep); err != nil || ep.addr != want {
			t.Errorf("want %s, got %v, %v", want, ep, err)
		}
	}
	es.release(held[0])
	if ep := es.at(taken[0]); ep == nil || ep == held[0] {
		t.Error("the next one has lost its address")
	}
}

// A container is restored only at an address that one can have and no other has, and at one address.
func TestRestore(t *testing.T) {
	es := testEndpoints("10.1.2.0/29")
	for addr, want := range map[string]bool{
		"10.1.2.0": false, "10.1.2.1": false, "10.1.2.7": false, "10.1.2.8": false, "::ffff:10.1.2.4": false, "fe80::1": false, "10.1.2.6": true,
	} {
		if ok := es.restore(testEndpoint(t, addr, "example.org"), netip.MustParseAddr(addr)); ok != want {
			t.Errorf("%s: %t", addr, ok)
		}
	}
	if es.restore(testEndpoint(t, "other", "example.org"), netip.MustParseAddr("10.1.2.6")) {
		t.Error("two at one address")
	}
	if es.restore(testEndpoint(t, "10.1.2.6", "example.org"), netip.MustParseAddr("10.1.2.5")) {
		t.Error("one at two addresses")
	}
}

// A container is known while it is registered, and not a moment longer.
func TestEndpointsAreKnownWhileRegistered(t *testing.T) {
	network := guarded{stack: &stack{endpoints: *testEndpoints("10.1.2.0/24")}}
	es := &network.endpoints
	ep := testEndpoint(t, "c", "*.example.org")
	if err := es.register(ep); err != nil {
		t.Fatal(err)
	}
	mapped := netip.AddrFrom16(ep.addr.As16())
	for _, addr := range []netip.Addr{ep.addr, mapped} {
		if client := es.dnsEndpoint(addr); client != ep.dns || client.ID != ep.container || client.User != "c" || client.Open || !client.Allows("a.example.org") || client.Allows("example.org") {
			t.Errorf("%s: %+v", addr, client)
		}
		if client, ok := network.Client(addr); !ok || client != ep || !client.Allows("a.example.org") || client.Allows("evilexample.org") {
			t.Errorf("%s: %v", addr, client)
		}
	}
	if es.dnsEndpoint(ep.addr.Next()) != nil {
		t.Error("a stranger is known")
	}
	es.mayPass = func() error { return errors.New("the host has no lease") }
	if _, ok := network.Client(ep.addr); ok || es.dnsEndpoint(ep.addr) != nil {
		t.Error("one is served while nothing may pass")
	}
	es.mayPass = func() error { return nil }
	if _, ok := network.Client(ep.addr); !ok || es.dnsEndpoint(ep.addr) == nil {
		t.Error("one is not served again")
	}
	ep.revoke()
	ep.revoke()
	if _, ok := network.Client(ep.addr); ok || es.dnsEndpoint(ep.addr) != nil {
		t.Error("one that was revoked is known")
	}
	if ep.open {
		t.Error("one with names is open")
	}
	if open := testEndpoint(t, "o", "*"); !open.open || !open.dns.Open {
		t.Errorf("%+v", open)
	}
}

func TestFreeSubnets(t *testing.T) {
	parse := func(texts ...string) (list []netip.Prefix) {
		for _, text := range texts {
			list = append(list, netip.MustParsePrefix(text))
		}
		return list
	}
	for _, c := range []struct {
		name          string
		ranges, taken []netip.Prefix
		bits          int
		first         string
		count         int
	}{
		{"nothing taken", parse("10.0.0.0/16", "172.29.0.0/16"), nil, 22, "10.0.0.0/22", 16},
		{"the first taken", parse("10.0.0.0/16"), parse("10.0.0.7/32", "10.0.4.0/24"), 22, "10.0.8.0/22", 8},
		{"the first range taken", parse("10.0.0.0/16", "172.29.0.0/16"), parse("10.0.0.0/8"), 22, "172.29.0.0/22", 8},
		{"a small range", parse("192.168.5.0/23"), parse("192.168.0.0/22"), 22, "192.168.4.0/23", 1},
		{"all taken", parse("10.0.0.0/16"), parse("10.0.0.0/9"), 22, "", 0},
		{"at the end", parse("10.255.252.0/22"), nil, 22, "10.255.252.0/22", 1},
		{"large ones", parse("10.0.0.0/16", "172.29.0.0/16", "192.168.224.0/20"), nil, 16, "10.0.0.0/16", 3},
	} {
		free := freeSubnets(c.ranges, c.bits, c.taken)
		if len(free) != c.count || c.count > 0 && free[0].String() != c.first {
			t.Errorf("%s: %v", c.name, free)
		}
	}
}
