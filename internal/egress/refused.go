package egress

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/egress/gateway"
)

// startRefused reports what filtered containers sent to ports that are not open, until life ends.
// The kernel has refused it.
func (s *stack) startRefused(life context.Context) {
	if s.gateway == nil {
		return
	}
	if s.gateway.Refused == nil {
		s.owner.cfg.Log.Info().Err(s.gateway.Untold).Str("network", s.network.Bridge).
			Msg("refused ports leave no trace: the network's gateway, which stays until no container needs it, or this kernel cannot tell of them")
		return
	}
	why := openPorts(s.owner.cfg.ExtraPorts)
	tell := func(r gateway.Refused) { s.reportRefused(r, why) }
	last := s.owner.cfg.Decisions.Late(func() { s.gateway.PassRefused(tell) })
	s.work.Go(func() {
		defer last()
		defer context.AfterFunc(life, func() { _ = s.gateway.Refused.Close() })()
		s.gateway.ReadRefused(tell)
	})
}

func (s *stack) reportRefused(r gateway.Refused, why string) {
	ep := s.endpoints.at(r.From)
	if ep == nil || ep.open || ep.gone() {
		return
	}
	via := decisions.TCP
	if r.UDP {
		via = decisions.UDP
	}
	if r.To.Port() == dnsPort {
		why = "names are answered only by the resolver in /etc/resolv.conf"
	}
	s.owner.cfg.Decisions.Add(decisions.Decision{
		User: ep.user, Container: ep.container, Name: ep.Asked(r.To.Addr()), Via: via,
		Port: r.To.Port(), Verdict: decisions.Denied, Reason: why,
	})
}

// openPorts says which ports are open.
func openPorts(extra []uint16) string {
	const limit = 8
	ports := append([]uint16{80, 443}, extra...)
	slices.Sort(ports)
	list := strings.Trim(strings.ReplaceAll(fmt.Sprint(ports), " ", ", "), "[]")
	if len(extra) > limit {
		list = "80, 443 and those of egress.extraPorts"
	}
	return fmt.Sprintf(
		"only TCP ports %s are open here; the operator can open more with egress.extraPorts", list)
}
