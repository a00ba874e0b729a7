package egress

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/egress/gateway"
)

// What was refused is logged under the name that this container asked for, or the address, and told to its calls.
func TestRefusedPorts(t *testing.T) {
	log := decisions.New(10)
	s := &stack{owner: &Egress{cfg: Config{Decisions: log}}, endpoints: *testEndpoints("10.1.2.0/28")}
	ep, open := testEndpoint(t, "u", "git.example.org"), testEndpoint(t, "v", "*")
	for _, one := range []*endpoint{ep, open} {
		if err := s.endpoints.register(one); err != nil {
			t.Fatal(err)
		}
	}
	git := netip.MustParseAddr("192.0.2.7")
	ep.answers.note("git.example.org", []netip.Addr{git}, time.Minute, time.Now())
	tally := log.Tally(ep.container)
	why := openPorts([]uint16{8443})
	for _, r := range []gateway.Refused{
		{From: ep.addr, To: netip.AddrPortFrom(git, 22)},
		{From: ep.addr, To: netip.AddrPortFrom(git, 22)},
		{From: ep.addr, To: netip.MustParseAddrPort("198.51.100.1:443"), UDP: true},
		{From: ep.addr, To: netip.MustParseAddrPort("198.51.100.1:53"), UDP: true},
		{From: open.addr, To: netip.AddrPortFrom(git, 22)},
		{From: netip.MustParseAddr("10.1.2.14"), To: netip.AddrPortFrom(git, 22)}, // nobody's
	} {
		s.reportRefused(r, why)
	}
	const ports = "only TCP ports 80, 443, 8443 are open here; the operator can open more with egress.extraPorts"
	lines, _ := tally.End()
	if diff := cmp.Diff([]decisions.Summary{
		{Name: "git.example.org", Port: 22, Via: decisions.TCP, Verdict: decisions.Denied, Reason: ports, Count: 2},
		{Name: "198.51.100.1", Port: 443, Via: decisions.UDP, Verdict: decisions.Denied, Reason: ports, Count: 1},
		{Name: "198.51.100.1", Port: 53, Via: decisions.UDP, Verdict: decisions.Denied, Reason: "names are answered only by the resolver in /etc/resolv.conf", Count: 1},
	}, lines); diff != "" {
		t.Error(diff)
	}
	if all := log.Recent(decisions.Filter{}, 0); len(all) != 3 || all[0].User != "u" || all[0].Port != 22 {
		t.Errorf("%+v", all)
	}
	ep.revoke()
	s.reportRefused(gateway.Refused{From: ep.addr, To: netip.AddrPortFrom(git, 25)}, why)
	if all := log.Recent(decisions.Filter{}, 0); len(all) != 3 {
		t.Error("what has gone is told of")
	}
}
