package egress

import (
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"github.com/daycare-run/sandbox/dnsfilter"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// dnsReasons are sentences for dnsfilter's words; those of the guard are sentences.
var dnsReasons = map[string]string{
	"name":     "the name is not allowed for this call",
	"form":     "what was asked for is not a host name",
	"private":  "the name has no address that this call may reach",
	"type":     "records of this type are not answered",
	"reverse":  "the names of addresses are not answered",
	"upstream": "no DNS server answered",
	"rate":     "too many questions in a second",
	"busy":     "too many questions wait for an answer",
	"unknown":  "nobody is known at this address",
}

var dnsVerdicts = map[dnsfilter.Verdict]decisions.Verdict{
	dnsfilter.Allowed: decisions.Allowed, dnsfilter.Denied: decisions.Denied, dnsfilter.NoData: decisions.Allowed,
	dnsfilter.Failed: decisions.Failed, dnsfilter.Limited: decisions.Limited, dnsfilter.Refused: decisions.Denied,
}

// reportQuestion implements dnsfilter.Config.Decided.
func (s *stack) reportQuestion(d dnsfilter.Decision) {
	decision := decisions.Decision{
		Time: d.Time, Container: d.Endpoint, Name: d.Name, Via: decisions.DNS, Type: dns.TypeToString[d.Type],
		Verdict: dnsVerdicts[d.Verdict], Reason: dnsReasons[d.Reason],
	}
	if d.Verdict == dnsfilter.Refused && d.Reason == "form" {
		decision.Verdict = decisions.Malformed // there was no question to decide about
	}
	if ep := s.endpoints.named(d.Endpoint); ep != nil {
		decision.User = ep.user
	}
	s.owner.cfg.Decisions.Add(decision)
}

// noteAnswer remembers the addresses that a filtered container is about to learn, for the further ports. It implements
// dnsfilter.Config.Answered.
func (s *stack) noteAnswer(client, name string, addrs []netip.Addr, ttl time.Duration) {
	if len(s.owner.cfg.ExtraPorts) == 0 {
		return
	}
	if ep := s.endpoints.named(client); ep != nil && !ep.open {
		ep.answers.note(name, addrs, ttl, time.Now())
	}
}
