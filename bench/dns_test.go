package main

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/dnsfilter"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

const printed = `DNS Performance Testing Tool
Version 2.10.0

[Status] Sending queries (to 127.77.0.1:5399)
> NOERROR host0000.bench.example A 0.000891
> NOERROR host0001.bench.example A 0.000179
[Status] Testing complete (time limit)

Statistics:

  Queries sent:         1000
  Queries completed:    1000 (100.00%)
  Queries lost:         0 (0.00%)

  Response codes:       NOERROR 999 (99.90%), SERVFAIL 1 (0.10%)
  Average packet size:  request 29, response 45
  Run time (s):         1.005746
  Queries per second:   44017.077871

  Average Latency (s):  0.001858 (min 0.000019, max 0.015783)
`

func TestReadLoad(t *testing.T) {
	got, err := readLoad([]byte(printed), "NOERROR", 500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if got.wall != 22718*time.Nanosecond || got.processor != 500*time.Microsecond || !slices.Equal(got.latency, sample{891 * time.Microsecond, 179 * time.Microsecond}) {
		t.Errorf("%+v", got)
	}
	for name, c := range map[string]struct{ text, code string }{
		"another answer":    {printed, "NXDOMAIN"},
		"some other":        {strings.Replace(printed, "NOERROR 999", "NOERROR 998", 1), "NOERROR"},
		"none sent":         {strings.Replace(printed, "sent:         1000", "sent: 0", 1), "NOERROR"},
		"nothing":           {"", "NOERROR"},
		"no latency":        {"> NOERROR host A x\n", "NOERROR"},
		"no statistics":     {"Queries sent: 10\n", "NOERROR"},
		"a name like codes": {"> NOERROR Response codes: A\n", "NOERROR"},
	} {
		if got, err := readLoad([]byte(c.text), c.code, time.Second); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestFilterPlan(t *testing.T) {
	asker := netip.MustParseAddr("127.77.1.1")
	known, err := filterPlan{Asker: asker, Clients: 1000, Names: []string{"host0000.bench.example"}}.register()
	if err != nil {
		t.Fatal(err)
	}
	if len(known.byAddr) != 1000 || known.at(asker) == nil || known.at(netip.MustParseAddr("127.77.0.255")) != nil {
		t.Errorf("%d clients", len(known.byAddr))
	}
	one := known.at(asker)
	if !one.Allows("host0000.bench.example") || one.Allows("host0001.bench.example") {
		t.Error("the client may have other names than planned")
	}
	log := decisions.New(10)
	decided(log)(dnsfilter.Decision{Client: one, Name: "x", Verdict: dnsfilter.Denied})
	if got := log.Recent(decisions.Filter{}, 10); len(got) != 1 || got[0].User != "user-0000" || got[0].Verdict != decisions.Denied {
		t.Errorf("%+v", got)
	}
}
