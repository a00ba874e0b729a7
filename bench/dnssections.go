package main

import (
	"fmt"
	"time"
)

// What the DNS filter must reach.
const (
	dnsmasqTarget = 0.8
	deniedTarget  = 1
	crowdTarget   = 1.1
	dnsP99Target  = time.Millisecond
)

func dnsSection(f findings) section {
	d := f.dns
	latencies := func(half dnsLatencies) []string {
		return []string{millis(half.p50.median()), millis(half.p99.median()), millis(half.p99.percentile(100))}
	}
	rates := func(who, what string, r dnsRates) []string {
		return []string{who, what, fmt.Sprint(len(r.perCPU)), thousands(r.perCPU.median()), thousands(r.perSecond.median())}
	}
	none := []string{"", "", ""}
	cached := fmt.Sprintf("%d names", dnsNames)
	cost := func(what string, r dnsRates) verdict {
		return atMost("any", "cost of a question, "+what, paired(d.one.perCPU, r.perCPU), crowdTarget)
	}
	return section{
		title: "DNS questions",
		how: fmt.Sprintf("`dnsperf`, with %d sockets and at most %d questions under way, asks for A records of which all are in the\n", dnsClients, dnsOutstanding) +
			"server's cache. The filter is in a process of its own, with its log of decisions as in the service; dnsmasq\n" +
			"is Debian's, in one process, with a cache for all names. Both are at an address of the loopback interface and\n" +
			"have the test internet's DNS server behind them, which is asked for nothing meanwhile. dnsperf asks from the\n" +
			"address of a registered client. Processor time is the server process's, user and system (`/proc/<pid>/stat`);\n" +
			fmt.Sprintf("dnsperf's is not counted, but it has one of the cores. Each load lasts %d s, they take turns in rounds, and the\n", f.settings.dnsSeconds) +
			"table has the medians. Latency is measured by dnsperf, too, at half of the questions per second that stand\n" +
			"beside it, once a round, and with the lowest priority: its two threads spin, and would keep a server on two\n" +
			"cores waiting. `nothing` is a thread that sends each question back as its own answer: what is there without a\n" +
			"server, at half of the filter's rate. Each round has percentiles of its own, of which the table has the\n" +
			"medians, and the worst 99th. Where there are many clients, one of them asks. Rates are in thousands. Ratios\n" +
			"are those of the rounds, and their median.",
		head: []string{"server", "asked for", "rounds", "per second of processor time", "per second", "p50 at half, ms", "p99 at half, ms", "of the worst round"},
		rows: [][]string{
			append(rates("dnsmasq", cached, d.dnsmasq), latencies(d.dnsmasqHalf)...),
			append(rates("filter", cached+", a list of all of them", d.filter), latencies(d.filterHalf)...),
			append([]string{"nothing", cached, "", "", ""}, latencies(d.nothingHalf)...),
			append(rates("filter", cached+" that are denied", d.denied), none...),
			append(rates("filter", "1 name; 1 client, a list of 1", d.one), none...),
			append(rates("filter", fmt.Sprintf("1 name; %d clients, lists of 1", dnsCrowd), d.crowd), none...),
			append(rates("filter", fmt.Sprintf("1 name; 1 client, a list of %d", dnsNames), d.list), none...),
		},
		verdicts: []verdict{
			atLeast("any", "questions per second of processor time, filter ÷ dnsmasq", paired(d.filter.perCPU, d.dnsmasq.perCPU), dnsmasqTarget),
			atLeast("any", "the same, denied ÷ allowed", paired(d.denied.perCPU, d.filter.perCPU), deniedTarget),
			below("any", "p99 of the filter at half of its rate, median of the rounds", d.filterHalf.p99.median(), dnsP99Target),
			cost(fmt.Sprintf("%d clients ÷ 1", dnsCrowd), d.crowd),
			cost(fmt.Sprintf("a list of %d ÷ 1", dnsNames), d.list),
		},
	}
}

// quotient is a over b; 0 when there is no b.
func quotient(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func thousands(n float64) string { return fmt.Sprintf("%.1f", n/1000) }
