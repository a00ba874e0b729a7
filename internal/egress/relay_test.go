package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/dockerexec/networks"
)

// A further port is reached only at addresses that DNS answered, while the answers last, and only so many.
func TestAnswersAreRemembered(t *testing.T) {
	var known answers
	now := time.Now()
	at := netip.MustParseAddr("198.51.100.7")
	is := func(what string, addr netip.Addr, now time.Time, want ...string) {
		t.Helper()
		if names := known.namesOf(addr, now); !slices.Equal(names, want) {
			t.Errorf("%s: %q, want %q", what, names, want)
		}
	}
	is("nothing was told", at, now)
	known.note("a.example", []netip.Addr{at}, time.Second, now)
	is("at once", at, now, "a.example")
	is("at the end of the least time", at, now.Add(leastTTL-1), "a.example")
	is("after it", at, now.Add(leastTTL))
	known.note("b.example", []netip.Addr{at}, 24*time.Hour, now)
	is("two names", at, now, "b.example", "a.example")
	known.note("a.example", []netip.Addr{at}, 2*time.Minute, now)
	is("the later one again", at, now, "a.example", "b.example")
	known.note("b.example", []netip.Addr{at}, 0, now)
	is("an answer that lasts, and then one that does not", at, now.Add(maxTTL-1), "b.example")
	is("after the longest time", at, now.Add(maxTTL))
	addr := netip.MustParseAddr("203.0.113.0")
	for range 2 * maxAnswers {
		addr = addr.Next()
		known.note("many.example", []netip.Addr{addr}, 0, now)
	}
	if known.count > maxAnswers || len(known.names) > maxAnswers {
		t.Errorf("%d are remembered, of %d addresses", known.count, len(known.names))
	}
	is("one of several names makes room for an address", at, now, "b.example")
	known.note("c.example", []netip.Addr{at}, time.Hour, now)
	is("where there is no room, one of the address's own makes it", at, now, "c.example")
	known.note("late.example", []netip.Addr{addr}, 0, now.Add(2*maxTTL))
	is("there is room when all have expired", addr, now.Add(2*maxTTL), "late.example")
}

// Of one address only so many names are remembered: those whose answers last longest.
func TestNamesOfOneAddressAreBounded(t *testing.T) {
	var known answers
	now, at := time.Now(), netip.MustParseAddr("198.51.100.7")
	known.note("lasts.example", []netip.Addr{at}, time.Hour, now)
	for i := range 4 * maxNames {
		known.note(fmt.Sprintf("n%d.example", i), []netip.Addr{at}, time.Minute, now)
	}
	names := known.namesOf(at, now)
	if len(names) != maxNames || known.count != maxNames || !slices.Contains(names, "lasts.example") || names[0] != fmt.Sprintf("n%d.example", 4*maxNames-1) {
		t.Errorf("%d are remembered: %q", known.count, names)
	}
}

// Names of one address take no place from other addresses.
func TestNamesLeaveRoomForAddresses(t *testing.T) {
	var known answers
	now, shared, other := time.Now(), netip.MustParseAddr("198.51.100.7").As4(), netip.MustParseAddr("203.0.113.9")
	for i := range maxAnswers {
		shared[3] = byte(i / maxNames)
		known.note(fmt.Sprintf("n%d.example", i), []netip.Addr{netip.AddrFrom4(shared)}, time.Hour, now)
	}
	known.note("other.example", []netip.Addr{other}, time.Hour, now)
	if names := known.namesOf(other, now); len(names) != 1 || known.count != maxAnswers {
		t.Errorf("%q, and %d are remembered", names, known.count)
	}
}

// A new connection counts those that are open, and no others.
func TestRelaysAreCounted(t *testing.T) {
	ep, err := newEndpoint(networks.Party{User: "u", Egress: networks.Egress{Addresses: []string{"192.0.2.0/24"}}})
	must(t, err)
	at := netip.MustParseAddr("192.0.2.7")
	var leaves []func()
	for want := range 3 {
		r, leave, ok := ep.enter(at, func() {})
		if !ok || r.others != want {
			t.Errorf("%+v, %t; want %d others", r, ok, want)
		}
		leaves = append(leaves, leave)
	}
	leaves[0]()
	if _, _, ok := ep.enter(netip.MustParseAddr("198.51.100.7"), func() {}); ok {
		t.Error("an address that may not be reached is entered")
	}
	if r, _, _ := ep.enter(at, func() {}); r.others != 2 {
		t.Errorf("%d others after one has left", r.others)
	}
}
