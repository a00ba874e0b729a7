package egress

import (
	"errors"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/networks"
)

// A container of the pool reaches nothing; when it is a user's it reaches what that user's call may, and is counted for
// that user.
func TestAssign(t *testing.T) {
	s := &stack{owner: &Egress{}, endpoints: *testEndpoints("10.1.2.0/29")}
	from, to := testParty(dockerexec.PoolUser("x")), testParty("alice", "a.example")
	waiting, err := newEndpoint(from)
	if err != nil {
		t.Fatal(err)
	}
	waiting.holder = 7
	if err := s.endpoints.register(waiting); err != nil {
		t.Fatal(err)
	}
	if waiting.open || waiting.Allows("a.example") {
		t.Error("it reaches something before it is bound")
	}
	open := testParty("eve", "*")
	local := testParty("eve", "a.example")
	local.Egress.Profile = "local"
	for what, pair := range map[string][2]networks.Party{
		"another container": {testParty(dockerexec.PoolUser("y")), to}, "all of the network": {from, open}, "another profile": {from, local}, "one that may reach something": {to, to},
	} {
		if err := s.assign(waiting.holder, pair[0], pair[1]); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	if err := s.assign(waiting.holder, from, to); err != nil {
		t.Fatal(err)
	}
	bound := s.endpoints.at(waiting.addr)
	if bound.user != "alice" || !bound.Allows("a.example") || bound.Allows("b.example") || !waiting.gone() || s.endpoints.byName[from.Name] != nil {
		t.Errorf("%+v", bound)
	}
	if err := s.assign(waiting.holder, from, testParty("mallory", "m.example")); err == nil {
		t.Error("a second user has it")
	}
	s.remove(7) // whatever it is called by now
	if s.endpoints.at(waiting.addr) != nil || !bound.gone() {
		t.Error("it was not removed")
	}
}

// What is open stays so: it has no way before it is bound.
func TestAssignOpen(t *testing.T) {
	s := &stack{owner: &Egress{}, endpoints: *testEndpoints("10.1.2.0/29")}
	from, to := testParty(dockerexec.PoolUser("x"), "*"), testParty("alice", "*")
	waiting, err := newEndpoint(from)
	if err != nil {
		t.Fatal(err)
	}
	waiting.holder = 7
	if err := s.endpoints.register(waiting); err != nil {
		t.Fatal(err)
	}
	if err := s.assign(waiting.holder, from, testParty("eve", "a.example")); err == nil {
		t.Error("what is open has become filtered")
	}
	if err := s.assign(waiting.holder, from, to); err != nil {
		t.Fatal(err)
	}
	if bound := s.endpoints.at(waiting.addr); bound.user != "alice" || !bound.open || !waiting.gone() {
		t.Errorf("%+v", bound)
	}
}

// Who has had an address before is not bound at it, though the one who has it has its name, nor is
// what is being removed: its address may be another's by then.
func TestBindOfWhatGoes(t *testing.T) {
	s := &stack{owner: &Egress{unfiltered: errors.New("no rules")}, endpoints: *testEndpoints("10.1.2.0/29")}
	going := testEndpoint(t, "u", "*")
	must(t, s.endpoints.register(going))
	going.holder = 2
	end := networks.Endpoint{Party: testParty("u", "*"), Holder: 2, Addr: going.addr}
	must(t, s.bind(end))
	before := end
	before.Holder = 1
	if err := s.bind(before); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("another holder's: %v", err)
	}
	going.revoke()
	if err := s.bind(end); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("%v", err)
	}
}
