package dnsfilter

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// unknownPerSecond bounds how often unknown sources, all together, are told that they are unknown.
const unknownPerSecond = 10

// pending is a question that upstreams have to be asked about.
type pending struct {
	who  *Client
	name string
}

// handle answers a packet of a client, or of an unknown source if who is nil, into out, without
// waiting. If an upstream has to be asked, it returns a pending question instead, with which the
// caller goes on with resolve. An empty reply is not sent. Over a stream answers may be large, and
// nothing is dropped, because nothing gets lost there: a question too many is the last.
func (s *Server) handle(q *question, who *Client, packet, out []byte,
	stream bool) ([]byte, *pending) {
	now := s.config.Now()
	if who == nil {
		if !s.unknown.Take(s.since(now), time.Second/unknownPerSecond, time.Second) ||
			q.parse(packet) != nil {
			s.decided(nil, "", 0, Denied, reasonUnknown, now)
			return nil, nil
		}
		s.decided(nil, "", q.qtype, Denied, reasonUnknown, now)
		return answerUnknown.appendTo(out, q), nil
	}
	fast := who.rate.Take(s.since(now), s.interval, burst) &&
		s.accounts.of(who).Take(s.since(now), s.interval/userRate, burst)
	q.last = !fast
	if !fast && !stream {
		s.decided(who, "", 0, Limited, reasonRate, now)
		return nil, nil
	}
	if err := q.parse(packet); err != nil {
		return s.malformed(q, err, out), nil
	}
	if stream {
		q.limit = dns.MaxMsgSize
	}
	if !fast {
		return s.report(&answerRate, who, "", now, q, out), nil
	}
	return s.decide(q, who, now, out)
}

// malformed answers a packet that holds no valid question, if it may be answered at all.
func (s *Server) malformed(q *question, err error, out []byte) []byte {
	a := answer{}
	switch {
	case errors.Is(err, errForm):
		q.name = nil
		a.rcode = dns.RcodeFormatError
	case errors.Is(err, errOpcode):
		a.rcode = dns.RcodeNotImplemented
	case errors.Is(err, errVersion):
		a.rcode = dns.RcodeBadVers
	default:
		return nil
	}
	return a.appendTo(out, q)
}

// decide decides whether a name is allowed.
func (s *Server) decide(q *question, who *Client, now time.Time, out []byte) ([]byte, *pending) {
	if q.class != dns.ClassINET {
		return s.report(&answerClass, who, "", now, q, out), nil
	}
	if !q.host {
		return s.report(&answerNotHost, who, "", now, q, out), nil
	}
	// The cache is asked first because it has the name as a string, which spares making one. Its
	// entry is used only if the name is allowed.
	nanos := s.since(now)
	e := s.resolver.Load().cache.get(q.setKey(), nanos)
	var name string
	if e != nil {
		name = e.name()
	} else {
		name = string(q.text())
	}
	if a := s.own(q, name); a != nil {
		return a.appendTo(out, q), nil // it asks for nobody else: this is no attempt to get out
	}
	if a := s.local(q, who, name); a != nil {
		return s.report(a, who, name, now, q, out), nil
	}
	if e == nil {
		return nil, &pending{who: who, name: name}
	}
	a := e.answer(nanos)
	who.answered(e, nanos)
	return s.report(&a, who, name, now, q, out), nil
}

// own returns the answer about a name that every client has for itself, or nil. No network of
// containers has IPv6.
func (s *Server) own(q *question, name string) *answer {
	switch {
	case name == "ip6-localhost", name == "ip6-loopback":
		return &answerNothing
	case name != "localhost" && (name == "" || name != s.config.HostName):
		return nil
	case q.qtype == dns.TypeA:
		return &answerLoopback
	}
	return &answerNothing
}

// local returns the answer that needs no upstream, or nil.
func (s *Server) local(q *question, who *Client, name string) *answer {
	switch {
	case isMeta(q.qtype):
		return &answerMetaType
	case !who.Open && isReverse(name):
		// Programs ask for the names of addresses by themselves: this is no attempt to get out.
		return &answerReverse
	case !who.allows(name):
		return &answerDenied
	case forwards(q.qtype, who.Open):
		return nil
	case who.Open || isAskedBeside(q.qtype) || isAskedUnasked(name):
		return &answerType
	default:
		return &answerOther
	}
}

// forwards reports whether upstreams are asked for a type of record. For filtered clients it is
// only addresses: another type has nothing that a connection needs, and TXT and NULL carry data in.
// HTTPS and SVCB are never forwarded: they hold addresses, and keys that hide from the guard which
// name is meant. Their absence is an ordinary answer, after which programs use A. AAAA is not
// forwarded either: no network of containers has IPv6.
func forwards(qtype uint16, open bool) bool {
	switch qtype {
	case dns.TypeA:
		return true
	case dns.TypeNS, dns.TypeCNAME, dns.TypeSOA, dns.TypePTR, dns.TypeMX, dns.TypeTXT, dns.TypeSRV,
		dns.TypeNAPTR, dns.TypeDS, dns.TypeDNSKEY, dns.TypeTLSA, dns.TypeSSHFP, dns.TypeCAA:
		return open
	}
	return false
}

// isAskedBeside reports whether programs ask for a type beside A, of whatever name, and do without.
func isAskedBeside(qtype uint16) bool {
	return qtype == dns.TypeAAAA || qtype == dns.TypeHTTPS || qtype == dns.TypeSVCB
}

// isAskedUnasked reports whether apt asks for a name by itself, and does without.
func isAskedUnasked(name string) bool {
	return strings.HasPrefix(name, "_http._tcp.") || strings.HasPrefix(name, "_https._tcp.")
}

// isMeta reports whether a type is not one of records: ANY, AXFR, OPT and the like.
func isMeta(qtype uint16) bool {
	return qtype == 0 || qtype == dns.TypeOPT || 128 <= qtype && qtype <= 255
}

func isReverse(name string) bool {
	return strings.HasSuffix(name, ".in-addr.arpa") || strings.HasSuffix(name, ".ip6.arpa")
}

// report reports the answer and writes it.
func (s *Server) report(a *answer, who *Client, name string, now time.Time, q *question,
	out []byte) []byte {
	if a != &answerType { // which is noise beside what became of the addresses
		s.decided(who, name, q.qtype, a.verdict, a.reason, now)
	}
	return a.appendTo(out, q)
}

// resolve answers a question from upstreams. The caller has taken a lookup for it, which resolve
// gives back.
func (s *Server) resolve(ctx context.Context, q *question, ask *pending, out []byte) []byte {
	defer s.lookups.Give(ask.who.User, 1)
	e, err := s.fetch(ctx, ask.who, string(q.setKey()), q.qtype)
	if err != nil {
		return nil // the server ends
	}
	now := s.config.Now()
	a := e.answer(s.since(now))
	ask.who.answered(e, s.since(now))
	return s.report(&a, ask.who, ask.name, now, q, out)
}

// detach returns a copy that shares nothing with the packet that the question was read from.
func (q *question) detach() *question {
	own := *q
	own.name = bytes.Clone(q.name)
	return &own
}
