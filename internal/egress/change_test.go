package egress

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
)

// What a container may reach is exchanged as a whole, and what it has going ends.
func TestChange(t *testing.T) {
	s := &stack{owner: &Egress{}, table: none{}, gateway: &gatewayLink{}}
	s.endpoints.init(dockerexec.Network{Subnet: netip.MustParsePrefix("10.1.2.0/28"), Gateway: netip.MustParseAddr("10.1.2.1")})
	spec := func(id string, domains ...string) dockerexec.Spec {
		return dockerexec.Spec{User: "u", Lasting: id, Egress: dockerexec.Egress{Profile: "isolated", Domains: domains}}
	}
	addr, err := s.add(spec("s1"))
	if err != nil {
		t.Fatal(err)
	}
	first := s.endpoints.at(addr)
	if first.Allows("a.example.org") {
		t.Error("nothing allows all")
	}
	change := func(addr netip.Addr, spec dockerexec.Spec) error {
		return s.change(dockerexec.Endpoint{Spec: spec, Addr: addr})
	}
	if err := change(addr, spec("s1", "*.example.org")); err != nil {
		t.Fatal(err)
	}
	second := s.endpoints.at(addr)
	if !first.gone() || second.gone() || !second.Allows("a.example.org") || s.endpoints.named("daycare-lasting-s1") != second {
		t.Errorf("%+v, then %+v", first, second)
	}
	if err := change(addr, spec("s1", "b.example.org")); err != nil {
		t.Fatal(err)
	}
	if now := s.endpoints.at(addr); !second.gone() || now.Allows("a.example.org") || !now.Allows("b.example.org") {
		t.Errorf("%+v", now)
	}
	for name, err := range map[string]error{
		"to all of the network": change(addr, spec("s1", "*")),
		"another container":     change(addr, spec("s2", "b.example.org")),
		"another address":       change(addr.Next(), spec("s1", "b.example.org")),
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
