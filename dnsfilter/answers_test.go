package dnsfilter_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func TestRebinding(t *testing.T) {
	for _, row := range []struct{ records, isolated, local string }{
		{"1.2.3.4", "NOERROR 1.2.3.4", "NOERROR 1.2.3.4"},
		{"10.0.0.1", "NOERROR SOA EDE Blocked", "NOERROR 10.0.0.1"},
		{"127.0.0.1", "NOERROR SOA EDE Blocked", "NOERROR SOA EDE Blocked"},
		{"169.254.169.254 0.0.0.0", "NOERROR SOA EDE Blocked", "NOERROR SOA EDE Blocked"},
		{"1.2.3.4 169.254.169.254", "NOERROR 1.2.3.4", "NOERROR 1.2.3.4"},
		{"10.0.0.1 1.2.3.4 192.168.1.1 5.6.7.8", "NOERROR 1.2.3.4 5.6.7.8", "NOERROR 10.0.0.1 1.2.3.4 192.168.1.1 5.6.7.8"},
	} {
		var lines []string
		for _, a := range strings.Fields(row.records) {
			lines = append(lines, "example.org. 300 A "+a)
		}
		upstream := newFake(t, zone(strings.Join(lines, "\n"))).addr
		l, private := newLab(t, nil, upstream), newLab(t, local, upstream)
		for range 2 { // from the upstream, and from the cache
			l.wantSaid(filtered, "example.org.", dns.TypeA, row.isolated)
			if d := l.lastDecision(); (d.Reason == byAddress) != strings.Contains(row.isolated, "Blocked") {
				t.Errorf("%s: decided %+v", row.records, d)
			}
			l.wantSaid(open, "example.org.", dns.TypeA, row.isolated)
			private.wantSaid(filtered, "example.org.", dns.TypeA, row.local)
		}
	}
}

// chain returns records in which example.org has so many aliases before its address.
func chain(links int) string {
	var b strings.Builder
	name := "example.org."
	for i := range links {
		next := fmt.Sprintf("link%d.elsewhere.test.", i)
		fmt.Fprintf(&b, "%s %d CNAME %s\n", name, 100-i, next)
		name = next
	}
	return b.String() + name + " 300 A 1.2.3.4"
}

func TestAliases(t *testing.T) {
	for name, row := range map[string]struct{ records, said string }{
		"to a denied name":  {chain(1), "NOERROR 1.2.3.4"},
		"as many as may be": {chain(16), "NOERROR 1.2.3.4"},
		"one too many":      {chain(17), "SERVFAIL EDE No Reachable Authority"},
		"to itself":         {"example.org. 9 CNAME example.org.", "SERVFAIL EDE No Reachable Authority"},
		"in a circle":       {"example.org. 9 CNAME b.test.\nb.test. 9 CNAME example.org.", "SERVFAIL EDE No Reachable Authority"},
		"to nothing":        {"example.org. 9 CNAME b.test.", "NXDOMAIN SOA"},
		"to another type":   {"example.org. 9 CNAME b.test.\nb.test. 9 TXT hello", "NOERROR SOA"},
		"to a private one":  {"example.org. 9 CNAME b.test.\nb.test. 9 A 10.0.0.1", "NOERROR SOA EDE Blocked"},
		"with odd case":     {"example.org. 9 CNAME B.test.\nb.TEST. 9 A 1.2.3.4", "NOERROR 1.2.3.4"},
	} {
		// Once with an upstream that gives one link at a time, once with all in one answer.
		apart := zone(row.records)
		together := func(w dns.ResponseWriter, q *dns.Msg) {
			reply := new(dns.Msg).SetReply(q)
			for line := range strings.Lines(row.records) {
				rr, _ := dns.NewRR(line)
				reply.Answer = append(reply.Answer, rr)
			}
			_ = w.WriteMsg(reply)
		}
		for how, answer := range map[string]func(dns.ResponseWriter, *dns.Msg){"apart": apart, "together": together} {
			if how == "together" && (name == "to nothing" || name == "to another type") {
				continue
			}
			t.Run(name+", "+how, func(t *testing.T) {
				l := newLab(t, nil, newFake(t, answer).addr)
				l.wantSaid(filtered, "example.org.", dns.TypeA, row.said)
			})
		}
	}
	t.Run("the least lifetime counts", func(t *testing.T) {
		l := newLab(t, nil, newFake(t, zone(chain(3))).addr)
		reply := l.ask(filtered, "example.org.", dns.TypeA)
		if len(reply.Answer) != 1 || reply.Answer[0].Header().Ttl != 98 || reply.Answer[0].Header().Name != "example.org." {
			t.Errorf("answered\n%s", reply)
		}
	})
}

func TestRecordsOfOthersAreLeft(t *testing.T) {
	l := newLab(t, nil, newFake(t, func(w dns.ResponseWriter, q *dns.Msg) {
		reply := new(dns.Msg).SetReply(q)
		for _, line := range []string{"victim.test. 9 A 6.6.6.6", "example.org. 9 A 1.2.3.4", "example.org. 9 CH A 6.6.6.7", "example.org. 9 TXT no"} {
			if rr, err := dns.NewRR(line); err == nil {
				reply.Answer = append(reply.Answer, rr)
			}
		}
		extra, _ := dns.NewRR("victim.test. 9 A 6.6.6.6")
		reply.Ns, reply.Extra = []dns.RR{extra}, []dns.RR{extra}
		_ = w.WriteMsg(reply)
	}).addr)
	l.wantSaid(filtered, "example.org.", dns.TypeA, "NOERROR 1.2.3.4")
}

func TestLargeAnswers(t *testing.T) {
	var records []string
	for i := range 100 {
		records = append(records, fmt.Sprintf("example.org. 9 A 1.2.3.%d", i))
	}
	l := newLab(t, nil, newFake(t, zone(strings.Join(records, "\n"))).addr)
	for range 2 {
		reply := l.ask(filtered, "example.org.", dns.TypeA)
		if !reply.Truncated || len(reply.Answer) != 0 {
			t.Errorf("by UDP:\n%s", reply)
		}
		q := new(dns.Msg).SetQuestion("example.org.", dns.TypeA)
		reply, _, err := l.client(filtered, "tcp").Exchange(q, l.addr)
		must(t, err)
		if reply.Truncated || len(reply.Answer) != 100 {
			t.Errorf("by TCP: %d answers", len(reply.Answer))
		}
	}
	// A client without EDNS takes 512 bytes.
	q := new(dns.Msg).SetQuestion("example.org.", dns.TypeA)
	client := l.client(filtered, "udp")
	client.UDPSize = 0
	reply, _, err := client.Exchange(q, l.addr)
	must(t, err)
	if !reply.Truncated {
		t.Errorf("without EDNS:\n%s", reply)
	}
}
