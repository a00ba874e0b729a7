package dnsfilter_test

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/daycare-run/sandbox/dnsfilter"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// impatient makes a lookup end soon, where an upstream says nothing of use.
func impatient(c *dnsfilter.Config) {
	c.Timeout, c.TryTimeout = 1200*time.Millisecond, 300*time.Millisecond
}

// good returns the answer that is true.
func good(q *dns.Msg) *dns.Msg {
	reply := new(dns.Msg).SetReply(q)
	rr, _ := dns.NewRR(q.Question[0].Name + " 300 A 1.2.3.4")
	reply.Answer = []dns.RR{rr}
	return reply
}

// bad answers with a wrong address after change.
func bad(change func(reply *dns.Msg)) func(w dns.ResponseWriter, q *dns.Msg) {
	return func(w dns.ResponseWriter, q *dns.Msg) {
		reply := good(q)
		reply.Answer[0].(*dns.A).A = net.IPv4(6, 6, 6, 6)
		change(reply)
		_ = w.WriteMsg(reply)
	}
}

var liars = map[string]func(w dns.ResponseWriter, q *dns.Msg){
	"silent":           func(dns.ResponseWriter, *dns.Msg) {},
	"wrong id":         bad(func(reply *dns.Msg) { reply.Id++ }),
	"no answer":        bad(func(reply *dns.Msg) { reply.Response = false }),
	"another name":     bad(func(reply *dns.Msg) { reply.Question[0].Name = "other.test." }),
	"another type":     bad(func(reply *dns.Msg) { reply.Question[0].Qtype = dns.TypeTXT }),
	"another class":    bad(func(reply *dns.Msg) { reply.Question[0].Qclass = dns.ClassCHAOS }),
	"no question":      bad(func(reply *dns.Msg) { reply.Question = nil }),
	"two questions":    bad(func(reply *dns.Msg) { reply.Question = append(reply.Question, reply.Question[0]) }),
	"server failure":   bad(func(reply *dns.Msg) { reply.Rcode = dns.RcodeServerFailure }),
	"refused":          bad(func(reply *dns.Msg) { reply.Rcode, reply.Answer = dns.RcodeRefused, nil }),
	"truncated always": bad(func(reply *dns.Msg) { reply.Truncated = true }),
	"empty":            func(w dns.ResponseWriter, q *dns.Msg) { _, _ = w.Write(nil) },
	"header alone": func(w dns.ResponseWriter, q *dns.Msg) {
		packed, _ := good(q).Pack()
		_, _ = w.Write(packed[:12])
	},
	"half": func(w dns.ResponseWriter, q *dns.Msg) {
		packed, _ := good(q).Pack()
		_, _ = w.Write(packed[:len(packed)-3])
	},
	"compression loop": func(w dns.ResponseWriter, q *dns.Msg) {
		packed, _ := good(q).Pack()
		loop := len(packed) - 16 - len(q.Question[0].Name) - 1 // where the record begins
		packed = append(packed[:loop:loop], 0xc0, byte(loop), 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 6, 6, 6, 6)
		_, _ = w.Write(packed)
	},
	"oversized": func(w dns.ResponseWriter, q *dns.Msg) {
		reply := good(q)
		for range 3000 {
			reply.Answer = append(reply.Answer, reply.Answer[0])
		}
		reply.Compress = true
		_ = w.WriteMsg(reply)
	},
}

func TestLyingUpstreams(t *testing.T) {
	for name, lie := range liars {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			liar := newFake(t, lie)
			alone := newLab(t, impatient, liar.addr)
			alone.wantSaid(filtered, "example.org.", dns.TypeA, "SERVFAIL EDE No Reachable Authority")
			if d := alone.lastDecision(); d.Verdict != dnsfilter.Failed || d.Reason != "no DNS server answered" {
				t.Errorf("decided %+v", d)
			}
			honest := newFake(t, nil)
			// Time enough for the honest one to be asked, and again, after the liar has said nothing.
			both := newLab(t, func(c *dnsfilter.Config) { c.Timeout, c.TryTimeout = 20*time.Second, 2*time.Second }, liar.addr, honest.addr)
			both.wantSaid(filtered, "example.org.", dns.TypeA, "NOERROR 1.2.3.4")
		})
	}
}

// TestLateTruth has an upstream whose true answer comes after some that somebody else might have sent.
func TestLateTruth(t *testing.T) {
	l := newLab(t, nil, newFake(t, func(w dns.ResponseWriter, q *dns.Msg) {
		liars["wrong id"](w, q)
		liars["another name"](w, q)
		_ = w.WriteMsg(good(q))
	}).addr)
	l.wantSaid(filtered, "example.org.", dns.TypeA, "NOERROR 1.2.3.4")
}

func TestTruncatedThenTCP(t *testing.T) {
	upstream := newFake(t, func(w dns.ResponseWriter, q *dns.Msg) {
		reply := good(q)
		if w.RemoteAddr().Network() == "udp" {
			reply.Truncated = true
			packed, _ := reply.Pack()
			_, _ = w.Write(packed[:len(packed)-len(q.Question[0].Name)%2*3]) // cut in the record, or after it
			return
		}
		_ = w.WriteMsg(reply)
	})
	l := newLab(t, nil, upstream.addr)
	l.wantSaid(filtered, "example.org.", dns.TypeA, "NOERROR 1.2.3.4")
	l.wantSaid(filtered, "a.example.org.", dns.TypeA, "NOERROR 1.2.3.4")
	if n := len(upstream.asked()); n != 4 {
		t.Errorf("the upstream was asked %d times", n)
	}
}

func TestFailureIsRemembered(t *testing.T) {
	// The first fails at once: the second has all the time to answer.
	first, second := newFake(t, liars["half"]), newFake(t, nil)
	l := newLab(t, nil, first.addr, second.addr)
	l.wantSaid(open, "example.org.", dns.TypeA, "NOERROR 1.2.3.4")
	n := 0
	waittest.Until(t, "the one that failed is asked no more", func() bool {
		before := len(first.asked())
		l.wantSaid(open, fmt.Sprintf("n%d.other.test.", n), dns.TypeA, "NXDOMAIN SOA")
		n++
		return len(first.asked()) == before
	})
	before := len(first.asked())
	l.clock.advance(11 * time.Second)
	l.wantSaid(open, "www.example.org.", dns.TypeA, "NOERROR 1.2.3.4")
	waittest.Until(t, "it is probed after a while", func() bool { return len(first.asked()) > before })
	if got := first.asked()[before:]; len(got) != 1 || got[0] != ". NS" {
		t.Errorf("after a while it was asked %q", got)
	}
	// One that says that it failed with a name is not one that fails.
	third := newFake(t, liars["server failure"])
	l = newLab(t, nil, third.addr, second.addr)
	l.wantSaid(open, "example.org.", dns.TypeA, "NOERROR 1.2.3.4")
	l.wantSaid(open, "other.test.", dns.TypeA, "NOERROR 5.6.7.8")
	if n := len(third.asked()); n != 2 {
		t.Errorf("the one with a failing name was asked %d times", n)
	}
}

// Names for which nobody answers are no reason to leave an upstream: whoever asks for them has chosen them.
func TestSilentNamesAreNoFailure(t *testing.T) {
	t.Parallel()
	first := newFake(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if !strings.HasPrefix(strings.ToLower(q.Question[0].Name), "silent") {
			_ = w.WriteMsg(good(q))
		}
	})
	second := newFake(t, nil)
	// Time enough for both to answer, where the first says nothing for all of a try.
	l := newLab(t, func(c *dnsfilter.Config) { c.TryTimeout = 4 * time.Second }, first.addr, second.addr)
	for n := range 3 {
		l.wantSaid(open, fmt.Sprintf("silent%d.test.", n), dns.TypeA, "NXDOMAIN SOA") // by the second
		name := fmt.Sprintf("other%d.example.org.", n)
		l.wantSaid(filtered, name, dns.TypeA, "NOERROR 1.2.3.4")
		if slices.Contains(second.asked(), name+" A") {
			t.Errorf("%s was not asked of the first", name)
		}
	}
}

func TestDeadUpstream(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	dead := conn.LocalAddr().String()
	conn.Close()
	// It is told, and does not wait.
	l := newLab(t, func(c *dnsfilter.Config) { c.Timeout, c.TryTimeout = time.Hour, time.Hour }, dead)
	l.wantSaid(filtered, "example.org.", dns.TypeA, "SERVFAIL EDE No Reachable Authority")
	if _, err := l.Resolve(t.Context(), &dnsfilter.Client{}, "example.org"); err == nil || !strings.Contains(err.Error(), "no upstream") {
		t.Errorf("resolved with %v", err)
	}
}
