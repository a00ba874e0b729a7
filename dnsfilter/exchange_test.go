package dnsfilter_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/daycare-run/sandbox/dnsfilter"
)

// The operator names other resolvers: what the earlier ones said is forgotten with them.
func TestUpstreamsChange(t *testing.T) {
	before := newFake(t, zone("www.example.org. 300 A 1.2.3.4"))
	after := newFake(t, zone("www.example.org. 300 A 5.6.7.8"))
	l := newLab(t, nil, before.addr)
	l.wantSaid(filtered, "www.example.org.", dns.TypeA, "NOERROR 1.2.3.4")
	must(t, l.SetUpstreams([]string{after.addr}))
	l.wantSaid(filtered, "www.example.org.", dns.TypeA, "NOERROR 5.6.7.8")
	for _, specs := range [][]string{nil, {before.addr, "no resolver"}} {
		if err := l.SetUpstreams(specs); err == nil {
			t.Errorf("took %q", specs)
		}
	}
	l.wantSaid(filtered, "example.org.", dns.TypeA, "NXDOMAIN SOA") // of those that there were
	if asked := len(before.asked()); asked != 1 {
		t.Errorf("the one before was asked %d times", asked)
	}
}

// A question that the earlier resolvers are being asked is put to the new ones: what the earlier ones say then answers
// nothing, and is not kept.
func TestUpstreamsChangeMeanwhile(t *testing.T) {
	asked, say := make(chan struct{}, 10), make(chan struct{})
	old := zone("www.example.org. 300 A 1.2.3.4")
	before := newFake(t, func(w dns.ResponseWriter, q *dns.Msg) {
		asked <- struct{}{}
		<-say
		old(w, q)
	})
	after := newFake(t, zone("www.example.org. 300 A 5.6.7.8"))
	l := newLab(t, nil, before.addr)
	answer := make(chan string)
	go func() { answer <- said(l.ask(filtered, "www.example.org.", dns.TypeA)) }()
	<-asked
	must(t, l.SetUpstreams([]string{after.addr}))
	close(say)
	if got := <-answer; got != "NOERROR 5.6.7.8" {
		t.Errorf("who has waited is told %s", got)
	}
	l.wantSaid(filtered, "www.example.org.", dns.TypeA, "NOERROR 5.6.7.8")
	must(t, l.Shutdown(t.Context()))
	if err := l.SetUpstreams([]string{after.addr}); err == nil {
		t.Error("upstreams were changed after the end")
	}
}

func TestAsk(t *testing.T) {
	silent := newFake(t, liars["silent"])
	for _, tt := range []struct {
		name, spec, asked, rcode, fault string
	}{
		{"an address", newFake(t, nil).addr, "example.org", "NOERROR", ""},
		{"none", newFake(t, nil).addr, "nowhere.test", "NXDOMAIN", ""},
		{"refused", newFake(t, liars["refused"]).addr, "example.org", "REFUSED", ""},
		{"no answer", silent.addr, "example.org", "", "timeout"},
		{"no resolver", "example.org", "example.org", "", "want address"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			limit := patience
			if tt.fault == "timeout" {
				limit = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			rcode, err := dnsfilter.Ask(ctx, tt.spec, tt.asked)
			if rcode != tt.rcode || (err != nil) != (tt.fault != "") {
				t.Fatalf("got %q, %v", rcode, err)
			}
			if err != nil && !strings.Contains(err.Error(), tt.fault) && ctx.Err() == nil {
				t.Errorf("got %v", err)
			}
		})
	}
}
