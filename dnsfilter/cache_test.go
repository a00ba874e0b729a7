package dnsfilter_test

import (
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/daycare-run/sandbox/dnsfilter"
)

func ttlOf(m *dns.Msg) uint32 {
	for _, rr := range append(m.Answer, m.Ns...) {
		return rr.Header().Ttl
	}
	return 0
}

func TestCacheLifetimes(t *testing.T) {
	for name, row := range map[string]struct {
		records string
		at      []time.Duration // when it is asked
		ttls    []uint32        // what the answers say
		asked   int
	}{
		"counts down": {
			"example.org. 10 A 1.2.3.4",
			[]time.Duration{0, 3 * time.Second, 3500 * time.Millisecond, 9999 * time.Millisecond, 10 * time.Second},
			[]uint32{10, 7, 7, 1, 10}, 2,
		},
		"the shortest of the set": {"example.org. 10 A 1.2.3.4\nexample.org. 5 A 1.2.3.5", []time.Duration{0, 5 * time.Second}, []uint32{5, 5}, 2},
		"none is kept a second":   {"example.org. 0 A 1.2.3.4", []time.Duration{0, 999 * time.Millisecond, time.Second}, []uint32{1, 1, 1}, 2},
		"a long one is cut":       {"example.org. 2000000000 A 1.2.3.4", []time.Duration{0, time.Hour}, []uint32{3600, 3600}, 2},
		"no such name":            {"other.test. 9 A 1.2.3.4", []time.Duration{0, 59 * time.Second, time.Minute}, []uint32{60, 1, 60}, 2},
		"no such type":            {"example.org. 9 TXT hello", []time.Duration{0, 59 * time.Second, time.Minute}, []uint32{60, 1, 60}, 2},
		"all struck out":          {"example.org. 9 A 10.0.0.1", []time.Duration{0, 8 * time.Second, 9 * time.Second}, []uint32{9, 1, 9}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			upstream := newFake(t, zone(row.records))
			l := newLab(t, nil, upstream.addr)
			var passed time.Duration
			for i, at := range row.at {
				l.clock.advance(at - passed)
				passed = at
				if got := ttlOf(l.ask(filtered, "example.org.", dns.TypeA)); got != row.ttls[i] {
					t.Errorf("after %s: %d s, want %d s", at, got, row.ttls[i])
				}
			}
			if n := len(upstream.asked()); n != row.asked {
				t.Errorf("the upstream was asked %d times, want %d", n, row.asked)
			}
		})
	}
}

func TestFailureIsKeptAMoment(t *testing.T) {
	upstream := newFake(t, liars["refused"])
	l := newLab(t, nil, upstream.addr)
	for range 3 {
		l.wantSaid(filtered, "example.org.", dns.TypeA, "SERVFAIL EDE No Reachable Authority")
	}
	if n := len(upstream.asked()); n != 1 {
		t.Errorf("the upstream was asked %d times", n)
	}
	l.clock.advance(time.Second)
	l.ask(filtered, "example.org.", dns.TypeA)
	if n := len(upstream.asked()); n != 2 {
		t.Errorf("the upstream was asked %d times after a second", n)
	}
}

// TestCacheIsNoWayAround has a name in the cache that another client may have.
func TestCacheIsNoWayAround(t *testing.T) {
	upstream := newFake(t, nil)
	l := newLab(t, nil, upstream.addr)
	l.wantSaid(open, "other.test.", dns.TypeA, "NOERROR 5.6.7.8")
	l.wantSaid(open, "example.org.", dns.TypeTXT, `NOERROR "hello"`)
	l.wantSaid(filtered, "other.test.", dns.TypeA, "NXDOMAIN SOA EDE Filtered")
	l.wantSaid(filtered, "example.org.", dns.TypeTXT, "NOERROR SOA")
	// And what one has, another gets.
	l.wantSaid(filtered, "example.org.", dns.TypeA, "NOERROR 1.2.3.4")
	l.wantSaid(other, "example.org.", dns.TypeA, "NOERROR 1.2.3.4")
	if n := len(upstream.asked()); n != 3 {
		t.Errorf("the upstream was asked %d times", n)
	}
}

// TestOneClientDoesNotEmptyTheCache has one client ask for more names than fit.
func TestOneClientDoesNotEmptyTheCache(t *testing.T) {
	upstream := newFake(t, func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(good(q)) })
	l := newLab(t, func(c *dnsfilter.Config) { c.CacheSize, c.QueriesPerSecond = 64, 500 }, upstream.addr)
	l.ask(filtered, "example.org.", dns.TypeA)
	for i := range 200 {
		l.ask(open, string(rune('a'+i%26))+string(rune('a'+i/26))+".test.", dns.TypeA)
	}
	before := len(upstream.asked())
	l.ask(filtered, "example.org.", dns.TypeA)
	if len(upstream.asked()) != before {
		t.Error("what another client had looked up is gone")
	}
	l.ask(open, "aa.test.", dns.TypeA)
	if len(upstream.asked()) != before+1 {
		t.Error("what was used least recently is still there")
	}
}
