package dnsfilter

import (
	"sync/atomic"
	"time"
)

// Verdict is what became of a question.
type Verdict uint8

const (
	Allowed Verdict = iota // answered from an upstream or the cache, also if there is no such name
	Denied                 // the name is not allowed, or all of its addresses are struck out
	NoData                 // the name may be asked for, but not what was asked about it
	Failed                 // no upstream had a usable answer
	Limited                // too many questions; dropped
	Refused                // from nobody known, or nothing that is answered
	verdicts
)

// String returns the verdict in lower camel case.
func (v Verdict) String() string {
	names := [verdicts]string{"allowed", "denied", "noData", "failed", "limited", "refused"}
	if v >= verdicts {
		return "unknown"
	}
	return names[v]
}

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

// Stats counts since New.
type Stats struct {
	Allowed, Denied, NoData, Failed, Limited, Refused uint64 // questions, by verdict
	Malformed                                         uint64 // packets that held no question
	Forwarded                                         uint64 // questions put to upstreams
}

type counters struct {
	verdicts  [verdicts]atomic.Uint64
	malformed atomic.Uint64
	forwarded atomic.Uint64
}

// Stats returns the counts of now.
func (s *Server) Stats() Stats {
	v := func(verdict Verdict) uint64 { return s.counters.verdicts[verdict].Load() }
	return Stats{
		Allowed: v(Allowed), Denied: v(Denied), NoData: v(NoData),
		Failed: v(Failed), Limited: v(Limited), Refused: v(Refused),
		Malformed: s.counters.malformed.Load(),
		Forwarded: s.counters.forwarded.Load(),
	}
}

// decided counts a decision and passes it on.
func (s *Server) decided(ep, name string, qtype uint16, v Verdict, reason string, now time.Time) {
	s.counters.verdicts[v].Add(1)
	if s.config.Decided != nil {
		s.config.Decided(Decision{ep, name, qtype, v, reason, now})
	}
}
