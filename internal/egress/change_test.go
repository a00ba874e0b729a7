package egress

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec/networks"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// What a container may reach is replaced as a whole, and those of its connections end that it may not have any more.
func TestChange(t *testing.T) {
	s := &stack{owner: &Egress{}, table: none{}, gateway: &gatewayLink{}}
	s.endpoints.init(networks.Network{Subnet: netip.MustParsePrefix("10.1.2.0/28"), Gateway: netip.MustParseAddr("10.1.2.1")})
	spec := func(id string, domains ...string) networks.Party {
		return networks.Party{User: "u", Name: id, Persistent: true, Egress: networks.Egress{Profile: "isolated", Domains: domains}}
	}
	addr, err := s.add(spec("s1"), 1)
	if err != nil {
		t.Fatal(err)
	}
	first := s.endpoints.at(addr)
	if first.Allows("a.example.org") {
		t.Error("nothing allows all")
	}
	change := func(addr netip.Addr, spec networks.Party) error {
		return s.change(networks.Endpoint{Party: spec, Holder: 1, Addr: addr})
	}
	if err := change(addr, spec("s1", "*.example.org")); err != nil {
		t.Fatal(err)
	}
	if now := s.endpoints.at(addr); now != first || first.gone() || !first.Allows("a.example.org") || s.endpoints.byName["s1"] != first {
		t.Errorf("%+v, then %+v", first, now)
	}
	far, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	first.answers.note("a.example.org", []netip.Addr{far}, time.Hour, time.Now())
	first.answers.note("b.example.org", []netip.Addr{other}, time.Hour, time.Now())
	cut := map[string]bool{}
	open := func(addr netip.Addr, what string) bool {
		t.Helper()
		_, _, ok := first.enter(addr, func() { cut[what] = true })
		return ok
	}
	if !open(far, "a") || !open(other, "b") || open(addr, "of none") {
		t.Error("of two names that are allowed, and an address that is none's")
	}
	if err := change(addr, spec("s1", "b.example.org")); err != nil {
		t.Fatal(err)
	}
	if now := s.endpoints.at(addr); now.Allows("a.example.org") || !now.Allows("b.example.org") || !maps.Equal(cut, map[string]bool{"a": true}) || open(far, "a") {
		t.Errorf("%+v, %v", now, cut)
	}
	ranges := spec("s1", "b.example.org")
	ranges.Egress.Addresses, ranges.Egress.DeniedAddresses = []string{"192.0.2.0/30"}, []string{"192.0.2.2/32"}
	if err := change(addr, ranges); err != nil || len(cut) != 1 || !open(far, "by address") || !open(other, "by name") || open(netip.MustParseAddr("192.0.2.4"), "") {
		t.Errorf("%v, %v", err, cut)
	}
	if err := change(addr, spec("s1", "b.example.org")); err != nil || !maps.Equal(cut, map[string]bool{"a": true, "by address": true}) {
		t.Errorf("%v, %v", err, cut)
	}
	for name, err := range map[string]error{
		"to all of the network": change(addr, spec("s1", "*")),
		"another container":     change(addr, spec("s2", "b.example.org")),
		"another address":       change(addr.Next(), spec("s1", "b.example.org")),
		"another of that name": s.change(networks.Endpoint{
			Party: spec("s1", "b.example.org"), Holder: 2, Addr: addr,
		}),
	} {
		if !errors.Is(err, errdefs.ErrFailedPrecondition) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now := s.endpoints.at(addr); now.gone() || !now.Allows("b.example.org") {
		t.Errorf("after what was refused: %+v", now)
	}
	s.endpoints.at(addr).revoke()
	if err := change(addr, spec("s1", "a.example.org")); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("of one that is gone: %v", err)
	}
}

// A container has the credentials that it was made with, also where an earlier service has made it. What it may reach may
// change while it runs, and they do not.
func TestSecretsOfAContainer(t *testing.T) {
	s := &stack{owner: &Egress{}, table: none{}, gateway: &gatewayLink{}}
	s.endpoints.init(networks.Network{Subnet: netip.MustParsePrefix("10.1.2.0/28"), Gateway: netip.MustParseAddr("10.1.2.1")})
	party := testParty("alice", "a.example")
	party.Name, party.Egress.Secrets = "c1", []string{"github", "npm"}
	addr, err := s.add(party, 1)
	if err != nil {
		t.Fatal(err)
	}
	secrets := func(addr netip.Addr) []string {
		t.Helper()
		client, ok := guarded{stack: s}.Client(addr)
		if !ok {
			t.Fatalf("%s is nobody's", addr)
		}
		return client.(*endpoint).Secrets()
	}
	if got := secrets(addr); !slices.Equal(got, party.Egress.Secrets) {
		t.Errorf("made: %q", got)
	}
	other := party
	other.Egress.Secrets, other.Egress.Domains = []string{"aws"}, []string{"b.example"}
	if err := s.change(networks.Endpoint{Party: other, Holder: 1, Addr: addr}); err != nil {
		t.Fatal(err)
	}
	if got := secrets(addr); !slices.Equal(got, party.Egress.Secrets) || !s.endpoints.at(addr).Allows("b.example") {
		t.Errorf("changed: %q", got)
	}
	found := party
	found.Name = "c2"
	s.restore([]networks.Endpoint{{Party: found, Holder: 2, Addr: addr.Next()}})
	if got := secrets(addr.Next()); !slices.Equal(got, party.Egress.Secrets) {
		t.Errorf("found: %q", got)
	}
	none, err := s.add(testParty("alice", "a.example"), 3)
	if err != nil {
		t.Fatal(err)
	}
	if got := secrets(none); len(got) != 0 {
		t.Errorf("of another call: %q", got)
	}
}

// An address that two names share is reached while either name is allowed and its answer lasts, whichever was asked for last.
func TestNamesThatShareAnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stack{owner: &Egress{}, endpoints: *testEndpoints("10.1.2.0/28"), table: none{}, gateway: &gatewayLink{}}
		spec := testParty("u", "a.example", "b.example")
		spec.Name, spec.Persistent = "s1", true
		addr, err := s.add(spec, 1)
		must(t, err)
		ep, shared := s.endpoints.at(addr), netip.MustParseAddr("192.0.2.1")
		ep.answers.note("a.example", []netip.Addr{shared}, time.Hour, time.Now())
		ep.answers.note("b.example", []netip.Addr{shared}, 30*time.Second, time.Now())
		cut := 0
		enters := func(want string) {
			t.Helper()
			r, _, ok := ep.enter(shared, func() { cut++ })
			if !ok || r.name != want {
				t.Errorf("%+v, %t; want it under %s", r, ok, want)
			}
		}
		enters("b.example")
		spec.Egress.Domains = []string{"a.example"}
		must(t, s.change(networks.Endpoint{Party: spec, Holder: 1, Addr: addr}))
		if cut != 0 {
			t.Error("a connection was cut that may go on under the other name")
		}
		enters("a.example")
		waittest.Pass(2 * time.Minute) // in which b's answer has expired
		enters("a.example")
		spec.Egress.Domains = []string{"c.example"}
		must(t, s.change(networks.Endpoint{Party: spec, Holder: 1, Addr: addr}))
		if _, _, ok := ep.enter(shared, func() {}); ok || cut != 3 {
			t.Errorf("neither name is allowed: %d were cut, and a new one may come: %t", cut, ok)
		}
	})
}

// unforgetting is a table that cannot forget flows yet.
type unforgetting struct {
	none
	forgets []error
}

func (u *unforgetting) Forget(netip.Addr) (err error) {
	if len(u.forgets) > 0 {
		err, u.forgets = u.forgets[0], u.forgets[1:]
	}
	return err
}

// After a change to filtered has failed, the next one succeeds only if it does all of the work.
func TestAChangeThatFailsHalfWay(t *testing.T) {
	busy := errors.New("the kernel is busy")
	table := &unforgetting{forgets: []error{busy, nil}}
	// No interface is found here, so that nothing gets as far as the gateway.
	s := &stack{owner: &Egress{}, endpoints: *testEndpoints("10.1.2.0/28"), table: table, gateway: &gatewayLink{interfaces: &interfaces{}}}
	to := testParty("u", "*")
	to.Name, to.Persistent = "s1", true
	addr, err := s.add(to, 1)
	must(t, err)
	first := s.endpoints.at(addr)
	to.Egress.Domains = []string{"a.example"}
	for i, want := range []error{busy, errClosed, errClosed} {
		if err := s.change(networks.Endpoint{Party: to, Holder: 1, Addr: addr}); !errors.Is(err, want) {
			t.Errorf("attempt %d: %v, want %v", i, err, want)
		}
		if now := s.endpoints.at(addr); now.open || !first.gone() {
			t.Errorf("attempt %d: %+v", i, now)
		}
	}
	if len(table.forgets) != 0 {
		t.Error("its flows were not forgotten")
	}
}

// overtaken is a table that cannot forget flows yet, and lets a test do something while a container is being cut off.
type overtaken struct {
	none
	meanwhile func()
}

func (o overtaken) Remove(netip.Addr) error { o.meanwhile(); return nil }
func (overtaken) Forget(netip.Addr) error   { return errors.New("the kernel is busy") }

// A container that is taken over while it becomes a filtered one is bound after that, as what it then is: where its interface
// and its address were, nothing is left to bind. Nor does it become a filtered one while it is bound.
func TestAChangeWhileAContainerIsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := overtaken{}
		s := &stack{owner: &Egress{interfaces: &interfaces{}}, endpoints: *testEndpoints("10.1.2.0/28"), table: none{}, gateway: &gatewayLink{interfaces: &interfaces{}}}
		before := testParty("u", "*")
		before.Name, before.Persistent = "s1", true
		addr, err := s.add(before, 1)
		must(t, err)
		after := before
		after.Egress.Domains = []string{"a.example"}
		bound := make(chan error, 1)
		table.meanwhile = func() {
			go func() { bound <- s.bind(networks.Endpoint{Party: before, Holder: 1, Addr: addr}) }()
			synctest.Wait()
			if len(bound) != 0 {
				t.Error("it was bound while it was cut off")
			}
		}
		s.table = table
		if err := s.change(networks.Endpoint{Party: after, Holder: 1, Addr: addr}); err == nil || !strings.Contains(err.Error(), "the kernel is busy") {
			t.Errorf("the change: %v", err)
		}
		if err := <-bound; !errors.Is(err, errClosed) || !strings.Contains(err.Error(), "to its gateway") {
			t.Errorf("it was not bound to the gateway: %v", err)
		}

		again, unlock := s.endpoints.lockBinding(addr) // as while it is bound
		again.open = true
		begun := false
		s.table = overtaken{meanwhile: func() { begun = true }}
		changed := make(chan error, 1)
		go func() { changed <- s.change(networks.Endpoint{Party: after, Holder: 1, Addr: addr}) }()
		synctest.Wait()
		if begun {
			t.Error("it was cut off while it was bound")
		}
		unlock()
		if err := <-changed; err == nil || !begun {
			t.Errorf("the change: %v", err)
		}
	})
}
