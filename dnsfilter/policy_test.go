package dnsfilter_test

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/miekg/dns"

	"github.com/daycare-run/sandbox/dnsfilter"
)

// questions are rows of the policy: who asks for what, what is said, and what an upstream hears.
var questions = []struct {
	from, name string
	qtype      uint16
	said       string
	verdict    dnsfilter.Verdict
	reason     string
	forwarded  string
}{
	{filtered, "example.org.", dns.TypeA, "NOERROR 1.2.3.4", dnsfilter.Allowed, "", "example.org. A"},
	{filtered, "www.Example.ORG.", dns.TypeA, "NOERROR 1.2.3.4", dnsfilter.Allowed, "", "www.example.org. A"},
	{filtered, "no.example.org.", dns.TypeA, "NXDOMAIN SOA", dnsfilter.Failed, byNobody, "no.example.org. A"},
	{filtered, "other.test.", dns.TypeA, "NXDOMAIN SOA EDE Filtered", dnsfilter.Denied, byName, ""},
	{filtered, "other.test.", dns.TypeAAAA, "NXDOMAIN SOA EDE Filtered", dnsfilter.Denied, byName, ""},
	{filtered, "secret.data.other.test.", dns.TypeTXT, "NXDOMAIN SOA EDE Filtered", dnsfilter.Denied, byName, ""},
	{filtered, "evilexample.org.", dns.TypeA, "NXDOMAIN SOA EDE Filtered", dnsfilter.Denied, byName, ""},
	{filtered, ".", dns.TypeA, "NXDOMAIN SOA EDE Filtered", dnsfilter.Denied, byName, ""},
	{filtered, "org.", dns.TypeA, "NXDOMAIN SOA EDE Filtered", dnsfilter.Denied, byName, ""},
	{filtered, "example.org.", dns.TypeAAAA, "NOERROR SOA", "", "", ""},
	{filtered, "example.org.", dns.TypeHTTPS, "NOERROR SOA", "", "", ""},
	{filtered, "example.org.", dns.TypeSVCB, "NOERROR SOA", "", "", ""},
	{filtered, "example.org.", dns.TypeTXT, "NOERROR SOA", dnsfilter.Failed, byOther, ""},
	{filtered, "example.org.", dns.TypeMX, "NOERROR SOA", dnsfilter.Failed, byOther, ""},
	{filtered, "example.org.", dns.TypeCNAME, "NOERROR SOA", dnsfilter.Failed, byOther, ""},
	{filtered, "data.example.org.", dns.TypeNULL, "NOERROR SOA", dnsfilter.Failed, byOther, ""},
	{filtered, "example.org.", 65280, "NOERROR SOA", dnsfilter.Failed, byOther, ""},
	{filtered, "_mongodb._tcp.example.org.", dns.TypeSRV, "NOERROR SOA", dnsfilter.Failed, byOther, ""},
	{filtered, "_http._tcp.example.org.", dns.TypeSRV, "NOERROR SOA", "", "", ""}, // apt's
	{filtered, "example.org.", dns.TypeANY, "NOTIMP", dnsfilter.Allowed, byType, ""},
	{filtered, "example.org.", dns.TypeAXFR, "NOTIMP", dnsfilter.Allowed, byType, ""},
	{filtered, "4.3.2.1.in-addr.arpa.", dns.TypePTR, "NXDOMAIN SOA", dnsfilter.Allowed, asReverse, ""},
	{filtered, "1.0.0.0.ip6.arpa.", dns.TypePTR, "NXDOMAIN SOA", dnsfilter.Allowed, asReverse, ""},
	// One label with a dot in it is not two labels.
	{filtered, `www\.example.org.`, dns.TypeA, "", dnsfilter.Denied, byForm, ""},
	{filtered, `a\000.example.org.`, dns.TypeA, "", dnsfilter.Denied, byForm, ""},
	{filtered, `*.example.org.`, dns.TypeA, "", dnsfilter.Denied, byForm, ""},
	{filtered, `_tcp.example.org.`, dns.TypeA, "NXDOMAIN SOA", dnsfilter.Failed, byNobody, "_tcp.example.org. A"},
	{open, "other.test.", dns.TypeA, "NOERROR 5.6.7.8", dnsfilter.Allowed, "", "other.test. A"},
	{open, "example.org.", dns.TypeTXT, `NOERROR "hello"`, dnsfilter.Allowed, "", "example.org. TXT"},
	{open, "example.org.", dns.TypeMX, "NOERROR 5 mail.example.org.", dnsfilter.Allowed, "", "example.org. MX"},
	{open, "1.1.1.1.in-addr.arpa.", dns.TypePTR, "NXDOMAIN SOA", dnsfilter.Allowed, "", "1.1.1.1.in-addr.arpa. PTR"},
	{open, "example.org.", dns.TypeAAAA, "NOERROR SOA", "", "", ""},
	{open, "example.org.", dns.TypeHTTPS, "NOERROR SOA", "", "", ""},
	{open, "example.org.", dns.TypeNULL, "NOERROR SOA", "", "", ""},
	{open, "example.org.", dns.TypeANY, "NOTIMP", dnsfilter.Allowed, byType, ""},
	{stranger, "example.org.", dns.TypeA, "REFUSED EDE Prohibited", dnsfilter.Denied, unknown, ""},
}

func TestPolicyDecidesQuestions(t *testing.T) {
	for _, row := range questions {
		t.Run(row.from+" "+row.name+" "+dns.TypeToString[row.qtype], func(t *testing.T) {
			if row.said == "" {
				row.said = "NXDOMAIN SOA EDE Filtered"
			}
			upstream := newFake(t, nil)
			l := newLab(t, nil, upstream.addr)
			reply := l.ask(row.from, row.name, row.qtype)
			if got := said(reply); got != row.said {
				t.Errorf("said %s, want %s", got, row.said)
			}
			if reply.Question[0].Name != row.name || !reply.RecursionAvailable || !reply.RecursionDesired || reply.IsEdns0() == nil {
				t.Errorf("the answer is\n%s", reply)
			}
			for _, rr := range reply.Answer {
				if rr.Header().Name != row.name {
					t.Errorf("the record is %s", rr)
				}
			}
			if row.verdict == "" {
				l.nothingDecided()
			} else if d := l.lastDecision(); d.Verdict != row.verdict || d.Reason != row.reason {
				t.Errorf("decided %s %q, want %s %q", d.Verdict, d.Reason, row.verdict, row.reason)
			}
			var want []string
			if row.forwarded != "" {
				want = []string{row.forwarded}
			}
			if got := upstream.asked(); !slices.Equal(got, want) {
				t.Errorf("the upstream was asked %q, want %q", got, want)
			}
		})
	}
}

// What a client calls itself is known without a network, and to ask for it is no attempt to get out.
func TestOwnNames(t *testing.T) {
	upstream := newFake(t, nil)
	l := newLab(t, func(c *dnsfilter.Config) { c.HostName = "box" }, upstream.addr)
	for _, from := range []string{filtered, open} {
		for _, name := range []string{"box.", "BOX.", "localhost."} {
			l.wantSaid(from, name, dns.TypeA, "NOERROR 127.0.0.1")
			l.wantSaid(from, name, dns.TypeAAAA, "NOERROR SOA")
			l.wantSaid(from, name, dns.TypeTXT, "NOERROR SOA")
		}
	}
	l.wantSaid(filtered, "ip6-localhost.", dns.TypeAAAA, "NOERROR SOA")
	l.wantSaid(filtered, "ip6-loopback.", dns.TypeA, "NOERROR SOA")
	if asked := upstream.asked(); len(asked) > 0 || len(l.decisions) > 0 {
		t.Errorf("the upstream was asked %q, and it was decided %+v", asked, l.decisions)
	}
	l.wantSaid(filtered, "a.box.", dns.TypeA, "NXDOMAIN SOA EDE Filtered")
	without := newLab(t, nil, upstream.addr)
	without.wantSaid(filtered, ".", dns.TypeA, "NXDOMAIN SOA EDE Filtered")
	without.wantSaid(filtered, "box.", dns.TypeA, "NXDOMAIN SOA EDE Filtered")
}

func TestOtherClassesAndOpcodes(t *testing.T) {
	upstream := newFake(t, nil)
	l := newLab(t, nil, upstream.addr)
	for name, row := range map[string]struct {
		change func(q *dns.Msg)
		rcode  int
	}{
		"chaos":         {func(q *dns.Msg) { q.Question[0].Qclass = dns.ClassCHAOS }, dns.RcodeRefused},
		"any class":     {func(q *dns.Msg) { q.Question[0].Qclass = dns.ClassANY }, dns.RcodeRefused},
		"no question":   {func(q *dns.Msg) { q.Question = nil }, dns.RcodeFormatError},
		"two questions": {func(q *dns.Msg) { q.Question = append(q.Question, q.Question[0]) }, dns.RcodeFormatError},
		"update":        {func(q *dns.Msg) { q.Opcode = dns.OpcodeUpdate }, dns.RcodeNotImplemented},
		"notify":        {func(q *dns.Msg) { q.Opcode = dns.OpcodeNotify }, dns.RcodeNotImplemented},
		"EDNS 1":        {func(q *dns.Msg) { q.SetEdns0(1232, false).IsEdns0().SetVersion(1) }, dns.RcodeBadVers},
		"an answer in it": {func(q *dns.Msg) {
			rr, _ := dns.NewRR("example.org. 1 A 1.2.3.4")
			q.Answer = append(q.Answer, rr)
		}, dns.RcodeFormatError},
	} {
		q := new(dns.Msg).SetQuestion("example.org.", dns.TypeA)
		row.change(q)
		reply, _, err := l.client(open, "udp").Exchange(q, l.addr)
		must(t, err)
		if reply.Rcode != row.rcode {
			t.Errorf("%s: %s, want %s", name, dns.RcodeToString[reply.Rcode], dns.RcodeToString[row.rcode])
		}
		if row.rcode == dns.RcodeRefused {
			if d := l.lastDecision(); d.Verdict != dnsfilter.Malformed || d.Reason != byClass {
				t.Errorf("%s: decided %s %q", name, d.Verdict, d.Reason)
			}
		}
	}
	if got := upstream.asked(); len(got) > 0 {
		t.Errorf("the upstream was asked %q", got)
	}
}

func TestGarbageIsDropped(t *testing.T) {
	upstream := newFake(t, nil)
	l := newLab(t, nil, upstream.addr)
	answer, _ := new(dns.Msg).SetReply(new(dns.Msg).SetQuestion("example.org.", dns.TypeA)).Pack()
	conn, err := net.Dial("udp", l.addr)
	must(t, err)
	defer conn.Close()
	for _, packet := range [][]byte{{0}, make([]byte, 11), answer} {
		_, err := conn.Write(packet)
		must(t, err)
	}
	// A loop of compression, then a good question: the first answers are FORMERR, for the loop, and the
	// good one's.
	_, err = conn.Write([]byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1})
	must(t, err)
	good, _ := new(dns.Msg).SetQuestion("example.org.", dns.TypeA).Pack()
	_, err = conn.Write(good)
	must(t, err)
	for _, want := range []int{dns.RcodeFormatError, dns.RcodeSuccess} {
		reply, err := (&dns.Conn{Conn: conn}).ReadMsg()
		must(t, err)
		if reply.Rcode != want {
			t.Errorf("answered\n%s", reply)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.decisions; len(s) != 1 || s[0].Verdict != dnsfilter.Allowed {
		t.Errorf("counted %+v", s)
	}
}

func TestWithoutEDNS(t *testing.T) {
	l := newLab(t, nil, newFake(t, nil).addr)
	q := new(dns.Msg).SetQuestion("other.test.", dns.TypeA)
	reply, _, err := l.client(filtered, "udp").Exchange(q, l.addr)
	must(t, err)
	if reply.IsEdns0() != nil || said(reply) != "NXDOMAIN SOA" {
		t.Errorf("answered\n%s", reply)
	}
}

func TestNoteOfAnswers(t *testing.T) {
	l := newLab(t, nil, newFake(t, nil).addr)
	l.ask(filtered, "www.example.org.", dns.TypeA)
	l.clock.advance(100 * time.Second)
	l.ask(open, "WWW.example.org.", dns.TypeA)
	l.ask(filtered, "other.test.", dns.TypeA)
	l.mu.Lock()
	defer l.mu.Unlock()
	want := []string{"filtered www.example.org 1.2.3.4 5m0s", "open www.example.org 1.2.3.4 3m20s"}
	if !slices.Equal(l.answers, want) {
		t.Errorf("told %q, want %q", l.answers, want)
	}
	if n := l.Forwarded(); len(l.decisions) != 3 || l.decisions[2].Verdict != dnsfilter.Denied || n != 1 {
		t.Errorf("decided %+v, %d forwarded", l.decisions, n)
	}
}

func TestResolve(t *testing.T) {
	upstream := newFake(t, zone("example.org. 300 A 1.2.3.4\nexample.org. 300 A 10.0.0.1\ninner.example.org. 9 A 10.0.0.1"))
	isolated, private := newLab(t, nil, upstream.addr), newLab(t, local, upstream.addr)
	for _, row := range []struct {
		*lab
		name, want string
		failed     func(error) bool
	}{
		{isolated, "example.org", "1.2.3.4", nil},
		{private, "example.org", "1.2.3.4 10.0.0.1", nil},
		{isolated, "inner.example.org", "", errdefs.IsNotFound},
		{isolated, "none.example.org", "", errdefs.IsNotFound},
		{isolated, "Example.org", "", errdefs.IsInvalidArgument},
		{isolated, "example.org.", "", errdefs.IsInvalidArgument},
		{isolated, "", "", errdefs.IsInvalidArgument},
		{isolated, `a\.b.org`, "", errdefs.IsInvalidArgument},
	} {
		client := &dnsfilter.Client{ID: "guarded"}
		if addrs, known := row.Known(row.name); known {
			t.Errorf("%s is known to be %v before anyone asked", row.name, addrs)
		}
		addrs, err := row.Resolve(t.Context(), client, row.name)
		var got string
		for i, a := range addrs {
			if i > 0 {
				got += " "
			}
			got += a.String()
		}
		if got != row.want || (err != nil) != (row.failed != nil) || err != nil && !row.failed(err) {
			t.Errorf("%s: %q, %v", row.name, got, err)
		}
		if again, known := row.Known(row.name); known != (row.want != "") || !slices.Equal(again, addrs) {
			t.Errorf("%s is known to be %v, %t", row.name, again, known)
		}
	}
	isolated.ask(filtered, "example.org.", dns.TypeA)
	if n := len(upstream.asked()); n != 4 {
		t.Errorf("the upstream was asked %d times", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := private.Resolve(ctx, &dnsfilter.Client{}, "new.example.org"); err == nil {
		t.Error("resolved although the context had ended")
	}
}
