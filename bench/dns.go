package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"
)

// dnsFindings has the loads of each server. denied are questions for names that the filter's client
// may not have.
type dnsFindings struct{ dnsmasq, filter, denied answered }

// answered has what each round of one load took.
type answered struct {
	// processor and wall are the times of one question: of the server's processors, and by the clock.
	processor, wall sample
	// p50 and p99 are latencies at half of the rate that the server can do.
	p50, p99 sample
}

const (
	// dnsNames is how many names there are, and dnsClients how many clients of the filter may have
	// all of them; one of the clients asks.
	dnsNames, dnsClients = 1000, 1000
	// dnsTTL is longer than a run.
	dnsTTL = 12 * time.Hour

	// dnsmasqTarget is what a question may cost the filter, relative to dnsmasq, and deniedTarget what
	// a denied one may, relative to an allowed one. dnsP99Target is for the latency at half load.
	dnsmasqTarget, deniedTarget = 1.25, 1.0
	dnsP99Target                = time.Millisecond
)

var (
	// Addresses of the loopback interface, which need no setting up.
	dnsFilterAddr, dnsmasqAddr = netip.MustParseAddr("127.77.0.1"), netip.MustParseAddr("127.77.0.2")
	dnsAsker                   = netip.MustParseAddr("127.77.1.1")
)

// dnsLoad is a server, the questions that it is asked, and where the results go.
type dnsLoad struct {
	server *peer
	asked  questions
	found  *answered
}

// measureDNS loads the servers by turns.
func (l *lab) measureDNS(ctx context.Context) (found dnsFindings, err error) {
	var names, others []string
	for i := range dnsNames {
		names, others = append(names, fmt.Sprintf("host%04d.bench.example", i)), append(others, fmt.Sprintf("host%04d.elsewhere.example", i))
		l.world.DNS.SetA(names[i], dnsTTL, l.world.Addr(originNumber))
	}
	allowed, err := writeQuestions(filepath.Join(l.dir, "allowed"), "NOERROR", names)
	if err != nil {
		return found, err
	}
	denied, err := writeQuestions(filepath.Join(l.dir, "denied"), "NXDOMAIN", others)
	if err != nil {
		return found, err
	}
	dnsmasq, err := l.startDNSMasq(ctx)
	if err != nil {
		return found, err
	}
	defer dnsmasq.stop()
	filter, err := l.startFilter(ctx, names)
	if err != nil {
		return found, err
	}
	defer filter.stop()
	loads := []dnsLoad{{dnsmasq, allowed, &found.dnsmasq}, {filter, allowed, &found.filter}, {filter, denied, &found.denied}}
	var full, half []way
	for _, load := range loads {
		if _, err := l.ask(ctx, load, 1, 0); err != nil { // fills the cache
			return found, err
		}
		full = append(full, once(&load.found.wall, func() (time.Duration, error) { return l.fullLoad(ctx, load) }))
		half = append(half, once(&load.found.p50, func() (time.Duration, error) { return l.halfLoad(ctx, load) }))
	}
	before := len(l.world.DNS.Questions())
	if err := byTurns(l.settings.dnsRounds, 0, full...); err != nil {
		return found, err
	}
	if err := byTurns(l.settings.dnsRounds, 0, half[:2]...); err != nil { // not of what is denied
		return found, err
	}
	if after := len(l.world.DNS.Questions()); after != before {
		err = fmt.Errorf("%d questions were not answered from a cache", after-before)
	}
	return found, err
}

// fullLoad asks as fast as a server answers, and returns the time of a question.
func (l *lab) fullLoad(ctx context.Context, load dnsLoad) (time.Duration, error) {
	got, err := l.ask(ctx, load, l.settings.dnsSeconds, 0)
	if err == nil {
		load.found.processor = append(load.found.processor, got.processor)
	}
	return got.wall, err
}

// halfLoad asks at half of the rate that a server can reach, and returns the median of the latency.
func (l *lab) halfLoad(ctx context.Context, load dnsLoad) (time.Duration, error) {
	got, err := l.ask(ctx, load, l.settings.dnsSeconds, perSecond(load.found.wall.median())/2)
	if err == nil && len(got.latency) == 0 {
		err = errors.New("dnsperf has printed no latencies")
	}
	if err == nil {
		load.found.p99 = append(load.found.p99, got.latency.percentile(99))
	}
	return got.latency.median(), err
}

// startDNSMasq starts dnsmasq for DNS alone, with a cache that holds all names.
func (l *lab) startDNSMasq(ctx context.Context) (*peer, error) {
	addr, err := freePort(dnsmasqAddr)
	if err != nil {
		return nil, err
	}
	return l.startPeer(ctx, "dnsmasq", addr, "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=root", "--log-facility=-",
		"--no-resolv", "--no-hosts", "--server="+l.world.DNSServers()[0].String(), "--cache-size=10000", "--dns-forward-max=1000",
		"--bind-interfaces", "--listen-address="+addr.Addr().String(), fmt.Sprintf("--port=%d", addr.Port()))
}

// perSecond returns how many things happen in a second if each takes that long, or 0 for no time.
func perSecond(each time.Duration) float64 {
	if each == 0 {
		return 0
	}
	return float64(time.Second) / float64(each)
}

func thousands(each time.Duration) string { return fmt.Sprintf("%.1f", perSecond(each)/1000) }

func dnsSection(f findings) section {
	d := f.dns
	s := section{
		title: "DNS questions",
		how: fmt.Sprintf("`dnsperf`, with %d sockets and at most %d questions under way, asks for A records of %d names that are all in the\n"+
			"server's cache. The filter is in a process of its own, with its log of decisions as in the service, and with %d\n"+
			"registered clients, each with a list of all names. dnsmasq is Debian's, in one process. Both are at an address of the\n"+
			"loopback interface. Behind them is the test internet's DNS server, which is asked for nothing meanwhile. dnsperf asks\n"+
			"from the address of one client. Processor time is the server process's, user and system; dnsperf's is not counted, but it\n"+
			"has one of the cores. Each load lasts %d s, the loads take turns in rounds, and the table has the medians. dnsperf\n"+
			"measures latency, too, once a round, at half of the questions per second beside it and with the lowest priority: its\n"+
			"two threads spin, and would keep a server on two cores waiting. Each round has percentiles of its own; the table has\n"+
			"their medians. Rates are in thousands. A ratio is the median of the rounds' ratios.", dnsSockets, dnsOutstanding, dnsNames, dnsClients, f.settings.dnsSeconds),
		head: []string{"server", "asked for", "rounds", "per second of processor time", "per second", "p50 at half", "p99 at half"},
	}
	for _, load := range []struct {
		server, asked string
		answered
	}{{"dnsmasq", "its names", d.dnsmasq}, {"filter", "its names", d.filter}, {"filter", "names that are denied", d.denied}} {
		s.row(load.server, load.asked, fmt.Sprint(len(load.wall)), thousands(load.processor.median()), thousands(load.wall.median()),
			millis(load.p50.median()), millis(load.p99.median()))
	}
	s.judge(
		atMost("any", "processor time of a question, filter ÷ dnsmasq", paired(d.filter.processor, d.dnsmasq.processor), dnsmasqTarget, times),
		atMost("any", "processor time of a question, denied ÷ allowed", paired(d.denied.processor, d.filter.processor), deniedTarget, times),
		atMost("any", "p99 of the filter at half of its rate, median of the rounds", d.filter.p99.median(), dnsP99Target, ms))
	return s
}
