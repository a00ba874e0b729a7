package dnsfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

const (
	maxLinks   = 16  // CNAMEs between a name and its records
	maxRecords = 128 // of one answer; those after are left out
)

var errChain = fmt.Errorf("more than %d aliases, or a loop of them", maxLinks)

// found is what the upstreams know of a name: the records at the end of its chain of aliases, or
// for how long there are none.
type found struct {
	rcode   int
	records []dns.RR // as if they were the name's own
	ttl     uint32   // the least in the chain
	struck  bool     // addresses were left out, and nothing remains
}

// lookup asks for a name and follows its aliases. Only the asked name was checked: whoever may say
// what it is may say so by way of other names. The addresses are checked at the end.
func (r *resolver) lookup(ctx context.Context, name string, qtype uint16) (found, error) {
	target := dns.Fqdn(name)
	ttl := uint32(1 << 31)
	for links := 0; ; {
		reply, err := r.exchange(ctx, target, qtype)
		if err != nil {
			return found{}, err
		}
		before := target
		for {
			alias := aliasOf(reply, target)
			if alias == nil || qtype == dns.TypeCNAME {
				break
			}
			if links++; links > maxLinks {
				return found{}, errChain
			}
			target, ttl = strings.ToLower(alias.Target), min(ttl, alias.Hdr.Ttl)
		}
		f := r.collect(reply, target, qtype, ttl)
		// An upstream that gives only the alias is asked for the rest.
		unfinished := target != before && len(f.records) == 0 && !f.struck &&
			reply.Rcode == dns.RcodeSuccess && soaOf(reply) == nil
		if !unfinished {
			return f, nil
		}
	}
}

func aliasOf(reply *dns.Msg, name string) *dns.CNAME {
	for _, rr := range reply.Answer {
		if alias, ok := rr.(*dns.CNAME); ok && is(rr, name) {
			return alias
		}
	}
	return nil
}

func soaOf(reply *dns.Msg) *dns.SOA {
	for _, rr := range reply.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			return soa
		}
	}
	return nil
}

// is reports whether a record is for a name, in class IN.
func is(rr dns.RR, name string) bool {
	return rr.Header().Class == dns.ClassINET && strings.EqualFold(rr.Header().Name, name)
}

// collect takes the records of one name and type; whatever else an upstream says is ignored.
func (r *resolver) collect(reply *dns.Msg, name string, qtype uint16, ttl uint32) found {
	f := found{rcode: reply.Rcode, ttl: ttl}
	for _, rr := range reply.Answer {
		if rr.Header().Rrtype != qtype || !is(rr, name) || len(f.records) == maxRecords {
			continue
		}
		if addr, isAddr := addrOf(rr); isAddr && !r.config.Admits(addr) {
			f.struck = true
			f.ttl = min(f.ttl, rr.Header().Ttl)
			continue
		}
		f.records = append(f.records, rr)
		f.ttl = min(f.ttl, rr.Header().Ttl)
	}
	if len(f.records) > 0 {
		f.rcode, f.struck = dns.RcodeSuccess, false
		return f
	}
	if f.struck {
		f.rcode = dns.RcodeSuccess
		return f
	}
	if soa := soaOf(reply); soa != nil { // RFC 2308, section 5
		f.ttl = min(f.ttl, soa.Hdr.Ttl, soa.Minttl)
	} else {
		f.ttl = 0
	}
	return f
}

// addrOf returns the address of an A or AAAA record; one without a usable address has the zero
// Addr, which nothing admits.
func addrOf(rr dns.RR) (addr netip.Addr, isAddr bool) {
	switch rr := rr.(type) {
	case *dns.A:
		addr, _ = netip.AddrFromSlice(rr.A)
		return addr.Unmap(), true
	case *dns.AAAA:
		addr, _ = netip.AddrFromSlice(rr.AAAA)
		return addr, true
	}
	return netip.Addr{}, false
}

// pack writes records in the form that an entry keeps.
func pack(rrs []dns.RR) (packed []byte, err error) {
	buffer := make([]byte, dns.MaxMsgSize)
	for _, rr := range rrs {
		rr.Header().Name = "."
		n, err := dns.PackRR(rr, buffer, 0, nil, false)
		if err != nil {
			return nil, fmt.Errorf("cannot pack a record: %w", err)
		}
		packed = append(packed, 0xc0, headerSize) // the name in the question
		packed = append(packed, buffer[1:n]...)
	}
	if len(packed) > dns.MaxMsgSize-2*(maxName+headerSize) {
		return nil, errors.New("the answer is too large")
	}
	return packed, nil
}
