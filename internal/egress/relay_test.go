package egress

import (
	"net/netip"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
)

// A further port is reached only at addresses that DNS answered, while the answers last, and only so many.
func TestAnswersAreRemembered(t *testing.T) {
	var known answers
	now := time.Now()
	at := netip.MustParseAddr("198.51.100.7")
	if _, ok := known.nameOf(at, now); ok {
		t.Error("nothing was told")
	}
	known.note("a.example", []netip.Addr{at}, time.Second, now)
	for after, want := range map[time.Duration]bool{0: true, leastTTL - 1: true, leastTTL: false} {
		if name, ok := known.nameOf(at, now.Add(after)); ok != want || name != "a.example" {
			t.Errorf("after %v: %q %t", after, name, ok)
		}
	}
	known.note("b.example", []netip.Addr{at}, 24*time.Hour, now)
	if name, ok := known.nameOf(at, now.Add(mostTTL)); ok || name != "b.example" {
		t.Errorf("%q %t", name, ok)
	}
	addr := netip.MustParseAddr("203.0.113.0")
	for range 2 * mostAnswers {
		addr = addr.Next()
		known.note("many.example", []netip.Addr{addr}, 0, now)
	}
	if len(known.names) > mostAnswers {
		t.Errorf("%d are remembered", len(known.names))
	}
	if _, ok := known.nameOf(at, now); !ok {
		t.Error("one was forgotten for others")
	}
	known.note("late.example", []netip.Addr{addr}, 0, now.Add(2*mostTTL))
	if name, ok := known.nameOf(addr, now.Add(2*mostTTL)); !ok || name != "late.example" {
		t.Error("there is no room although all have expired")
	}
}

// A new connection counts those that are open, and no others.
func TestRelaysAreCounted(t *testing.T) {
	ep, err := newEndpoint(dockerexec.Spec{User: "u", Egress: dockerexec.Egress{Addresses: []string{"192.0.2.0/24"}}})
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
