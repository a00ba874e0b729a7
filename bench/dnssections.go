package main

import (
	"fmt"
	"time"
)

// These are the targets of the DNS filter.
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
		how: fmt.Sprintf("`dnsperf`, with %d sockets and at most %d questions under way, asks for A records that are all in the server's\n"+
			"cache. The filter is in a process of its own, with its log of decisions as in the service. dnsmasq is Debian's, in\n"+
			"one process, with a cache for all names. Both are at an address of the loopback interface. Behind them is the test\n"+
			"internet's DNS server, which is asked for nothing meanwhile. dnsperf asks from the address of a registered client.\n"+
			"Processor time is the server process's, user and system (`/proc/<pid>/stat`); dnsperf's is not counted, but it has\n"+
			"one of the cores. Each load lasts %d s, the loads take turns in rounds, and the table has the medians. dnsperf\n"+
			"measures latency, too, once a round, at half of the questions per second beside it and with the lowest priority: its\n"+
			"two threads spin, and would keep a server on two cores waiting. `nothing` is a thread that sends each question back\n"+
			"as its own answer: the latency without a server, at half of the filter's rate. Each round has percentiles of its\n"+
			"own; the table has their medians, and the worst 99th. Where there are many clients, one of them asks. Rates are in\n"+
			"thousands. A ratio is the median of the rounds' ratios.", dnsClients, dnsOutstanding, f.settings.dnsSeconds),
		head: []string{"server", "asked for", "rounds", "per second of processor time", "per second", "p50 at half, ms", "p99 at half, ms", "p99 of the worst round, ms"},
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
			atLeast("any", "questions per second of processor time, denied ÷ allowed", paired(d.denied.perCPU, d.filter.perCPU), deniedTarget),
			below("any", "p99 of the filter at half of its rate, median of the rounds", d.filterHalf.p99.median(), dnsP99Target),
			cost(fmt.Sprintf("%d clients ÷ 1", dnsCrowd), d.crowd),
			cost(fmt.Sprintf("a list of %d ÷ 1", dnsNames), d.list),
		},
	}
}

// quotient returns a / b, or 0 if b is 0.
func quotient(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func thousands(n float64) string { return fmt.Sprintf("%.1f", n/1000) }
