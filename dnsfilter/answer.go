package dnsfilter

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// answer is what to say to a question.
type answer struct {
	verdict Verdict
	reason  string
	rcode   int
	records []byte // as entry.records
	count   int    // of records
	ttl     uint32 // in seconds, of the records or of their absence
	ede     []byte // an EDNS option that says why, or nil
}

// Answers that need no upstream. A client may remember for a moment that a name is denied; the
// next container at its address is another one, with a cache of its own.
var (
	answerDenied = answer{verdict: Denied, reason: reasonName, rcode: dns.RcodeNameError,
		ttl: localTTL, ede: edeFiltered}
	answerNotHost = answer{verdict: Denied, reason: reasonForm, rcode: dns.RcodeNameError,
		ttl: localTTL, ede: edeFiltered}
	answerReverse = answer{verdict: Allowed, reason: reasonReverse, rcode: dns.RcodeNameError,
		ttl: localTTL}
	answerType     = answer{verdict: Allowed, reason: reasonType, ttl: localTTL}
	answerOther    = answer{verdict: Failed, reason: reasonOther, ttl: localTTL}
	answerMetaType = answer{verdict: Allowed, reason: reasonType, rcode: dns.RcodeNotImplemented}
	answerClass    = answer{verdict: Malformed, reason: reasonClass, rcode: dns.RcodeRefused}
	answerUnknown  = answer{verdict: Denied, reason: reasonUnknown, rcode: dns.RcodeRefused,
		ede: edeProhibited}
	answerRate = answer{verdict: Limited, reason: reasonRate, rcode: dns.RcodeRefused}
	answerBusy = answer{verdict: Limited, reason: reasonBusy, rcode: dns.RcodeServerFailure}
)

// Answers about a client itself, which are not reported.
var (
	answerNothing  = answer{ttl: localTTL}
	answerLoopback = answer{
		records: []byte{0xc0, headerSize, 0, byte(dns.TypeA), 0, dns.ClassINET, 0, 0, 0, 0, 0, 4,
			127, 0, 0, 1}, count: 1, ttl: localTTL,
	}
)

const localTTL = 10 // seconds

// Options of RFC 8914. The texts go to a program in the container, and perhaps to its agent.
var (
	edeBlocked     = ede(dns.ExtendedErrorCodeBlocked, "this name has private addresses only")
	edeFiltered    = ede(dns.ExtendedErrorCodeFiltered, "this name was not allowed for this call")
	edeProhibited  = ede(dns.ExtendedErrorCodeProhibited, "nobody is registered at this address")
	edeUnreachable = ede(dns.ExtendedErrorCodeNoReachableAuthority,
		"no upstream resolver has an answer")
)

func ede(code uint16, text string) []byte {
	b := binary.BigEndian.AppendUint16(nil, dns.EDNS0EDE)
	b = binary.BigEndian.AppendUint16(b, uint16(2+len(text)))
	b = binary.BigEndian.AppendUint16(b, code)
	return append(b, text...)
}

// soaHead and soaData are the SOA record that says for how long there is nothing, without its time
// to live and last field, which repeats it. It is made up: the zone is the root, which holds every
// name.
var (
	soaHead = []byte{0, 0, byte(dns.TypeSOA), 0, dns.ClassINET}
	soaData = func() []byte {
		b := binary.BigEndian.AppendUint16(nil, 22) // two root names and five numbers
		b = append(b, 0, 0)
		for _, n := range []uint32{1, 3600, 600, 86400} { // serial, refresh, retry, expire
			b = binary.BigEndian.AppendUint32(b, n)
		}
		return b
	}()
)

// appendTo writes the message that answers q into out, which is reused, and returns it.
func (a *answer) appendTo(out []byte, q *question) []byte {
	out = q.appendHeader(out[:0], a.rcode)
	if a.count > 0 {
		binary.BigEndian.PutUint16(out[6:], uint16(a.count))
		start := len(out)
		out = append(out, a.records...)
		setTTL(out[start:], a.ttl)
	} else if a.rcode == dns.RcodeSuccess || a.rcode == dns.RcodeNameError {
		out[9] = 1 // authority
		out = append(out, soaHead...)
		out = binary.BigEndian.AppendUint32(out, a.ttl)
		out = append(out, soaData...)
		out = binary.BigEndian.AppendUint32(out, a.ttl)
	}
	end := len(out)
	out = q.appendOPT(out, a.rcode, a.ede)
	if len(out) <= q.limit {
		return out
	}
	if end+optSize <= q.limit {
		return q.appendOPT(out[:end], a.rcode, nil) // without the reason it fits
	}
	out = q.appendHeader(out[:0], a.rcode)
	out[2] |= bitTruncated >> 8
	return q.appendOPT(out, a.rcode, nil)
}

// appendHeader writes the header and the question, in the case in which it was asked.
func (q *question) appendHeader(out []byte, rcode int) []byte {
	flags := bitResponse | bitAvailable | q.flags&(maskOpcode|bitDesired|bitChecking) | uint16(
		rcode&0xf)
	out = binary.BigEndian.AppendUint16(out, q.id)
	out = binary.BigEndian.AppendUint16(out, flags)
	asked := byte(0)
	if q.name != nil {
		asked = 1
	}
	out = append(out, 0, asked, 0, 0, 0, 0, 0, 0)
	return append(out, q.name...)
}

// appendOPT writes the record of EDNS, if the question had one.
func (q *question) appendOPT(out []byte, rcode int, option []byte) []byte {
	if !q.edns {
		out[11] = 0
		return out
	}
	out[11] = 1 // additional
	flags := byte(0)
	if q.do {
		flags = 0x80
	}
	out = append(out, 0, 0, byte(dns.TypeOPT), maxPayload>>8, maxPayload&0xff, byte(rcode>>4), 0,
		flags, 0)
	out = binary.BigEndian.AppendUint16(out, uint16(len(option)))
	return append(out, option...)
}

// Each record of an entry is for the asked name, whose place in the message is always the same, so
// that all begin alike: a pointer to the name, type, class, time to live, length.
const recordHead = 12

// setTTL writes the time to live of records.
func setTTL(records []byte, ttl uint32) {
	for len(records) >= recordHead {
		binary.BigEndian.PutUint32(records[6:], ttl)
		records = records[recordHead+int(binary.BigEndian.Uint16(records[10:])):]
	}
}
