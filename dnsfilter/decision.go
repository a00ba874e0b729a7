package dnsfilter

import "time"

// Verdict is what became of a question.
type Verdict string

const (
	Allowed Verdict = "allowed" // answered from an upstream or the cache, also if there is no such name
	Denied  Verdict = "denied"  // the name is not allowed, or all of its addresses are struck out
	NoData  Verdict = "noData"  // the name may be asked for, but not what was asked about it
	Failed  Verdict = "failed"  // no upstream had a usable answer
	Limited Verdict = "limited" // too many questions; dropped
	Refused Verdict = "refused" // from nobody known, or nothing that is answered
)

// Decision is what was decided about one question.
type Decision struct {
	Endpoint string // its ID; empty if it is unknown
	Name     string // in lower case, without a trailing dot; empty if it was not looked at
	Type     uint16 // of the record, as in DNS
	Verdict  Verdict
	Reason   string // a word for it: name, form, private, type, reverse, upstream, rate, busy or unknown
	Time     time.Time
}

// The words for a decision's reason. An allowed question has none.
const (
	reasonName     = "name"     // denied: not allowed for this call
	reasonForm     = "form"     // denied: no host name; refused: no question that is answered
	reasonPrivate  = "private"  // denied: all addresses are private ones or the host's
	reasonType     = "type"     // noData: this type of record is not answered
	reasonReverse  = "reverse"  // noData: names of addresses are not answered
	reasonUpstream = "upstream" // failed: no upstream answered
	reasonRate     = "rate"     // limited: too many in a second
	reasonBusy     = "busy"     // limited: too many that wait for an upstream
	reasonUnknown  = "unknown"  // refused: nobody is registered at the source
)

// decided reports a decision.
func (s *Server) decided(ep, name string, qtype uint16, v Verdict, reason string, now time.Time) {
	if s.config.Decided != nil {
		s.config.Decided(Decision{ep, name, qtype, v, reason, now})
	}
}
