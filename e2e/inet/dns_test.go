package inet

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

func TestDNS(t *testing.T) {
	in := start(t)
	in.DNS.SetA("two.test", 5*time.Minute, in.Addr(1), in.Addr(2), six)
	in.DNS.SetA("none.test", time.Minute)
	in.DNS.SetA("*.wild.test", time.Minute, in.Addr(3))
	in.DNS.SetNX("not.wild.test")
	in.DNS.SetCNAME("alias.test", time.Minute, "Two.test.")
	in.DNS.SetCNAME("dangling.test", time.Minute, "nothing.test")
	in.DNS.SetCNAME("loop.test", time.Minute, "loop.test")
	must(t, in.DNS.SetRR(`two.test 60 TXT "one"`, `two.test 60 TXT "two"`))
	must(t, in.DNS.SetRR(`big.test 60 TXT `+strings.Repeat(`"`+strings.Repeat("x", 200)+`" `, 10)))
	in.DNS.SetA("servfail.test", time.Minute, in.Addr(1))
	in.DNS.FailName("servfail.test", ServFail)
	in.DNS.SetA("cut.test", time.Minute, in.Addr(1))
	in.DNS.FailName("cut.test", Truncate)

	const soa = " SOA"
	for _, test := range []struct{ question, want string }{
		{"two.test. A udp", "NOERROR two.test. 300 A 198.51.100.1, two.test. 300 A 198.51.100.2"},
		{"two.test. A tcp", "NOERROR two.test. 300 A 198.51.100.1, two.test. 300 A 198.51.100.2"},
		{"tWo.TesT. AAAA udp", "NOERROR tWo.TesT. 300 AAAA 2001:db8:77::5"},
		{"two.test. TXT udp", `NOERROR two.test. 60 TXT "one", two.test. 60 TXT "two"`},
		{"two.test. MX udp", "NOERROR" + soa},
		{"none.test. A udp", "NOERROR" + soa},
		{"test. A udp", "NOERROR" + soa}, // there are names below it
		{"nothing.test. A udp", "NXDOMAIN" + soa},
		{"a.b.wild.test. A udp", "NOERROR a.b.wild.test. 60 A 198.51.100.3"},
		{"wild.test. A udp", "NOERROR" + soa},
		{"not.wild.test. A udp", "NXDOMAIN" + soa},
		{"alias.test. A udp", "NOERROR alias.test. 60 CNAME Two.test., Two.test. 300 A 198.51.100.1, Two.test. 300 A 198.51.100.2"},
		{"alias.test. CNAME udp", "NOERROR alias.test. 60 CNAME Two.test."},
		{"dangling.test. A udp", "NXDOMAIN dangling.test. 60 CNAME nothing.test."},
		{"loop.test. A udp", "SERVFAIL" + soa},
		{"servfail.test. A tcp", "SERVFAIL"},
		{"cut.test. A udp", "NOERROR TC"},
		{"cut.test. A tcp", "NOERROR cut.test. 60 A 198.51.100.1"},
		{"big.test. TXT udp", "NOERROR TC"},
	} {
		for _, server := range in.DNSServers() {
			name, kind, proto := fields(test.question)
			reply, err := ask(t, server, name, kind, proto)
			if err != nil || summary(reply) != test.want {
				t.Errorf("%s at %s: %q, %v; want %q", test.question, server, summary(reply), err, test.want)
			}
		}
	}

	if got := in.DNS.Asked("TWO.test"); got != 10 {
		t.Errorf("two.test was asked %d times", got)
	}
	q := in.DNS.Questions()[1]
	if q.Name != "two.test." || q.Type != "A" || q.Proto != "udp" || q.Server != in.Addr(54) || !q.From.IsValid() {
		t.Errorf("logged: %+v", q)
	}
}

func TestDNSChangesAndFails(t *testing.T) {
	in := start(t)
	servers := in.DNSServers()
	in.DNS.SetA("a.test", time.Minute, in.Addr(1))
	in.DNS.SetA("a.test", time.Minute, in.Addr(2))
	in.DNS.FailServer(servers[0], Silent)
	impatient := &dns.Client{Timeout: 100 * time.Millisecond}
	question := new(dns.Msg).SetQuestion("a.test.", dns.TypeA)
	if reply, _, err := impatient.Exchange(question, netip.AddrPortFrom(servers[0], 53).String()); !isTimeout(err) {
		t.Errorf("a silent server says %v, %v", reply, err)
	}
	must(t, retry(t.Context(), func() (bool, error) { return in.DNS.Asked("a.test") == 1, nil }))
	reply, err := ask(t, servers[1], "a.test.", "A", "udp")
	must(t, err)
	if got := summary(reply); got != "NOERROR a.test. 60 A 198.51.100.2" {
		t.Errorf("the other server says %q", got)
	}
	in.DNS.FailServer(servers[0], None)
	in.DNS.SetNX("a.test")
	reply, err = ask(t, servers[0], "a.test.", "A", "udp")
	must(t, err)
	if reply.Rcode != dns.RcodeNameError {
		t.Errorf("a removed name: %v", reply)
	}
	if got := in.DNS.Asked("a.test"); got != 3 {
		t.Errorf("asked %d times; the one without an answer counts", got)
	}
	for _, bad := range [][]string{{"a.test A 1.2"}, {""}, {"a.test A 192.0.2.1", "b.test A 192.0.2.1"}} {
		if in.DNS.SetRR(bad...) == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func ask(t testing.TB, server netip.Addr, name, kind, proto string) (*dns.Msg, error) {
	t.Helper()
	c := &dns.Client{Net: proto, Timeout: time.Minute}
	q := new(dns.Msg).SetQuestion(name, dns.StringToType[kind])
	reply, _, err := c.ExchangeContext(t.Context(), q, netip.AddrPortFrom(server, 53).String())
	return reply, err
}

// summary is a reply on one line.
func summary(reply *dns.Msg) string {
	if reply == nil {
		return "none"
	}
	var records []string
	for _, rr := range reply.Answer {
		records = append(records, strings.Join(slices.Delete(strings.Fields(rr.String()), 2, 3), " "))
	}
	text := dns.RcodeToString[reply.Rcode]
	if reply.Truncated {
		text += " TC"
	}
	if len(records) > 0 {
		text += " " + strings.Join(records, ", ")
	}
	if len(reply.Ns) > 0 {
		text += " " + dns.TypeToString[reply.Ns[0].Header().Rrtype]
	}
	return text
}

func fields(question string) (name, kind, proto string) {
	all := strings.Fields(question)
	return all[0], all[1], all[2]
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
