package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/policy"
)

func testTenant(t *testing.T, container string, domains ...string) Tenant {
	t.Helper()
	parsed, err := policy.ParseDomains(domains)
	if err != nil {
		t.Fatal(err)
	}
	return Tenant{User: "user-" + container, Container: container, Domains: parsed}
}

func testMembers(subnet string) *members {
	prefix := netip.MustParsePrefix(subnet)
	ms := &members{}
	ms.init(Network{Profile: "isolated", Bridge: "b0", Subnet: prefix, Gateway: prefix.Addr().Next()})
	return ms
}

// Every address but those of the network itself is given out, each once, and one that was given back as
// late as possible.
func TestAddresses(t *testing.T) {
	ms := testMembers("10.1.2.0/29")
	var taken []netip.Addr
	var held []*member
	for i := range 5 {
		m, err := ms.take(testTenant(t, fmt.Sprint("c", i), "example.org"), "isolated")
		if err != nil {
			t.Fatal(err)
		}
		taken, held = append(taken, m.addr), append(held, m)
	}
	if got := fmt.Sprint(taken); got != "[10.1.2.2 10.1.2.3 10.1.2.4 10.1.2.5 10.1.2.6]" {
		t.Error(got)
	}
	if _, err := ms.take(testTenant(t, "more", "example.org"), "isolated"); !errors.Is(err, errdefs.ErrResourceExhausted) {
		t.Errorf("full: %v", err)
	}
	ms.leave(held[2])
	if _, err := ms.take(testTenant(t, "c2", "example.org"), "isolated"); !errors.Is(err, errdefs.ErrResourceExhausted) {
		t.Errorf("an address was given out that is not free: %v", err)
	}
	ms.free(held[3])
	ms.free(held[0])
	ms.free(held[0])
	if _, err := ms.take(testTenant(t, "c1", "example.org"), "isolated"); !errors.Is(err, errdefs.ErrAlreadyExists) {
		t.Errorf("twice: %v", err)
	}
	for _, want := range []netip.Addr{taken[0], taken[3]} {
		if m, err := ms.take(testTenant(t, "again "+want.String(), "example.org"), "isolated"); err != nil || m.addr != want {
			t.Errorf("want %s, got %v, %v", want, m, err)
		}
	}
	ms.free(held[0])
	if m := ms.at(taken[0]); m == nil || m == held[0] {
		t.Error("the next one has lost its address")
	}
}

// What a container may be known at.
func TestPut(t *testing.T) {
	ms := testMembers("10.1.2.0/29")
	for addr, want := range map[string]bool{
		"10.1.2.0": false, "10.1.2.1": false, "10.1.2.7": false, "10.1.2.8": false, "::ffff:10.1.2.4": false, "fe80::1": false, "10.1.2.6": true,
	} {
		if _, ok := ms.put(netip.MustParseAddr(addr), testTenant(t, addr, "example.org"), "isolated"); ok != want {
			t.Errorf("%s: %t", addr, ok)
		}
	}
	if _, ok := ms.put(netip.MustParseAddr("10.1.2.6"), testTenant(t, "other", "example.org"), "isolated"); ok {
		t.Error("two at one address")
	}
	if _, ok := ms.put(netip.MustParseAddr("10.1.2.5"), testTenant(t, "10.1.2.6", "example.org"), "isolated"); ok {
		t.Error("one at two addresses")
	}
}

// Who asks is known while it is a member, and not a moment longer.
func TestWhoAsks(t *testing.T) {
	ms := testMembers("10.1.2.0/24")
	m, err := ms.take(testTenant(t, "c", "*.example.org"), "isolated")
	if err != nil {
		t.Fatal(err)
	}
	mapped := netip.AddrFrom16(m.addr.As16())
	for _, addr := range []netip.Addr{m.addr, mapped} {
		if client := ms.asker(addr); client != m.asks || client.ID != "c" || client.Open || !client.Allows("a.example.org") || client.Allows("example.org") {
			t.Errorf("%s: %+v", addr, client)
		}
		if client, ok := ms.caller(addr); !ok || client != m || !client.Allows("a.example.org") || client.Allows("evilexample.org") {
			t.Errorf("%s: %v", addr, client)
		}
	}
	if ms.asker(m.addr.Next()) != nil {
		t.Error("a stranger is known")
	}
	m.revoke()
	m.revoke()
	if _, ok := ms.caller(m.addr); ok || ms.asker(m.addr) != nil {
		t.Error("one that was revoked is known")
	}
	if m.open {
		t.Error("one with names is open")
	}
	if open := newMember(m.addr, testTenant(t, "o", "*"), "isolated"); !open.open || !open.asks.Open {
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
		first         string
		count         int
	}{
		{"nothing taken", parse("10.0.0.0/16", "172.29.0.0/16"), nil, "10.0.0.0/22", 16},
		{"the first taken", parse("10.0.0.0/16"), parse("10.0.0.7/32", "10.0.4.0/24"), "10.0.8.0/22", 8},
		{"the first range taken", parse("10.0.0.0/16", "172.29.0.0/16"), parse("10.0.0.0/8"), "172.29.0.0/22", 8},
		{"a small range", parse("192.168.5.0/23"), parse("192.168.0.0/22"), "192.168.4.0/23", 1},
		{"all taken", parse("10.0.0.0/16"), parse("10.0.0.0/9"), "", 0},
		{"at the end", parse("10.255.252.0/22"), nil, "10.255.252.0/22", 1},
	} {
		free := freeSubnets(c.ranges, c.taken)
		if len(free) != c.count || c.count > 0 && free[0].String() != c.first {
			t.Errorf("%s: %v", c.name, free)
		}
	}
}
