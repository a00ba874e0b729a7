package inet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// A node is what is known of a name.
type node struct {
	records []dns.RR
	absent  bool // also where a wildcard says otherwise
}

// soa goes with every negative answer.
var soa = &dns.SOA{
	Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 60},
	Ns:  "ns.", Mbox: "root.", Serial: 1, Refresh: 60, Retry: 60, Expire: 60, Minttl: 60,
}

// maxAliases is how long a chain of CNAMEs is followed; a longer one is a SERVFAIL.
const maxAliases = 16

// SetA replaces the addresses of a name, IPv4 as A and IPv6 as AAAA records. Without any, the name
// exists and has none. A name that begins with "*." stands for all names below that have nothing of
// their own. The lifetime is in whole seconds.
func (d *DNS) SetA(name string, ttl time.Duration, addrs ...netip.Addr) {
	var records []dns.RR
	for _, addr := range addrs {
		if addr.Is4() {
			records = append(records, &dns.A{Hdr: header(name, dns.TypeA, ttl), A: addr.AsSlice()})
		} else {
			records = append(records, &dns.AAAA{Hdr: header(name, dns.TypeAAAA, ttl),
				AAAA: addr.AsSlice()})
		}
	}
	d.put(name, records, dns.TypeA, dns.TypeAAAA)
}

// SetCNAME makes a name an alias, and nothing else.
func (d *DNS) SetCNAME(name string, ttl time.Duration, target string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	alias := &dns.CNAME{Hdr: header(name, dns.TypeCNAME, ttl), Target: dns.Fqdn(target)}
	d.names[dns.CanonicalName(name)] = node{records: []dns.RR{alias}}
}

// SetNX makes a name not exist, also below a wildcard.
func (d *DNS) SetNX(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names[dns.CanonicalName(name)] = node{absent: true}
}

// SetRR replaces the records of one name and type with those in lines of a zone file, such as
// `example.org. 300 IN TXT "hello"`. All lines are of the same name and type.
func (d *DNS) SetRR(lines ...string) error {
	var records []dns.RR
	for _, line := range lines {
		rr, err := dns.NewRR(line)
		if err != nil {
			return fmt.Errorf("cannot set record %q: %w", line, err)
		}
		if rr == nil {
			return fmt.Errorf("cannot set record %q: it is empty", line)
		}
		records = append(records, rr)
		if first := records[0].Header(); rr.Header().Rrtype != first.Rrtype ||
			!strings.EqualFold(rr.Header().Name, first.Name) {
			return fmt.Errorf("cannot set record %q: %q is of another name or type", line, lines[0])
		}
	}
	if len(records) > 0 {
		d.put(records[0].Header().Name, records, records[0].Header().Rrtype)
	}
	return nil
}

func header(name string, rrtype uint16, ttl time.Duration) dns.RR_Header {
	return dns.RR_Header{Name: dns.Fqdn(name), Rrtype: rrtype, Class: dns.ClassINET,
		Ttl: uint32(ttl / time.Second)}
}

// put replaces the records of the given types, and an alias, which bears nothing beside it.
func (d *DNS) put(name string, records []dns.RR, types ...uint16) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := dns.CanonicalName(name)
	for _, rr := range d.names[key].records {
		if t := rr.Header().Rrtype; t != dns.TypeCNAME && !slices.Contains(types, t) {
			records = append(records, rr)
		}
	}
	d.names[key] = node{records: records}
}

// lookup answers a question, through aliases. An answer without records and with success is for a
// name that has none of the type.
func (d *DNS) lookup(name string, qtype uint16) (answer []dns.RR, rcode int) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for range maxAliases {
		found, exists := d.find(dns.CanonicalName(name))
		if !exists {
			return answer, dns.RcodeNameError
		}
		alias := ""
		for _, rr := range found.records {
			cname, isAlias := rr.(*dns.CNAME)
			if !isAlias && rr.Header().Rrtype != qtype && qtype != dns.TypeANY {
				continue
			}
			rr = dns.Copy(rr)
			rr.Header().Name = name // as it was asked, also where a wildcard answers
			answer = append(answer, rr)
			if isAlias && qtype != dns.TypeCNAME && qtype != dns.TypeANY {
				alias = cname.Target
			}
		}
		if alias == "" {
			return answer, dns.RcodeSuccess
		}
		name = alias
	}
	return nil, dns.RcodeServerFailure
}

// find returns what is known of a canonical name: its own node, that of the nearest wildcard, or,
// if there are names below it, an empty one.
func (d *DNS) find(name string) (found node, exists bool) {
	if found, exists = d.names[name]; exists {
		return found, !found.absent
	}
	for other, n := range d.names {
		if !n.absent && strings.HasSuffix(other, "."+name) {
			return node{}, true
		}
	}
	for _, parent, ok := strings.Cut(name, "."); ok; _, parent, ok = strings.Cut(parent, ".") {
		if found, exists = d.names["*."+parent]; exists {
			return found, !found.absent
		}
	}
	return node{}, false
}
