package egress

import (
	"github.com/miekg/dns"

	"github.com/daycare-run/sandbox/dnsfilter"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// reportQuestion implements dnsfilter.Config.Decided.
func (e *Egress) reportQuestion(d dnsfilter.Decision) {
	decision := decisions.Decision{
		Time: d.Time, Name: d.Name, Via: decisions.DNS, Type: dns.TypeToString[d.Type],
		Verdict: decisions.Verdict(d.Verdict), Reason: d.Reason,
	}
	if d.Client != nil {
		decision.User, decision.Container = d.Client.User, d.Client.ID
	}
	e.cfg.Decisions.Add(decision)
}
