package dnsfilter

import "time"

// Verdict is what became of a question.
type Verdict string

const (
	Allowed   Verdict = "allowed"   // answered
	Denied    Verdict = "denied"    // the name is not allowed, all of its addresses are struck out, or the source is unknown
	Failed    Verdict = "failed"    // there is no such name or address, no upstream had a usable answer, or none is given to such a question
	Limited   Verdict = "limited"   // too many questions; dropped or refused
	Malformed Verdict = "malformed" // not a question that is answered
)

// Decision is what was decided about one question.
type Decision struct {
	Client  *Client // nil if it is unknown
	Name    string  // in lower case, without a trailing dot; empty if it was not looked at
	Type    uint16  // of the record, as in DNS
	Verdict Verdict
	Reason  string // one of a few sentences
	Time    time.Time
}

// The reasons of decisions. A question that was asked of an upstream and answered has none.
const (
	reasonName      = "the name is not allowed for this call"
	reasonForm      = "what was asked for is not a host name"
	reasonClass     = "records of this class are not answered"
	reasonPrivate   = "the name has no address that this call may reach"
	reasonType      = "records of this type are not answered"
	reasonOther     = "only addresses are answered, no SRV, TXT or other records: name the server itself, as in mongodb:// instead of mongodb+srv://"
	reasonNoName    = "the DNS servers know no such name"
	reasonNoAddress = "the name has no IPv4 address"
	reasonReverse   = "reverse lookups are not answered"
	reasonUpstream  = "no DNS server answered"
	reasonRate      = "too many questions in a second"
	reasonBusy      = "too many questions wait for an answer"
	reasonUnknown   = "nobody is known at this address"
)

// decided reports a decision.
func (s *Server) decided(who *Client, name string, qtype uint16, v Verdict, reason string,
	now time.Time) {
	if s.config.Decided != nil {
		s.config.Decided(Decision{who, name, qtype, v, reason, now})
	}
}
