package main

import (
	"fmt"
	"time"
)

// These are the targets of the way to the network.
const (
	warmNetworkTarget    = 1.05
	guardStreamTarget    = 0.9
	guardHandshakeTarget = 500 * time.Microsecond
	guardIdleTarget      = int64(60e6)
)

func networkSection(f findings) section {
	s := section{
		title: "Calls that may use the network",
		how: "An exec of `true` through the API, by users who may use the network: calls without the grant `@network`, and calls\n" +
			"with it and one name. Warm ones take turns in rows of ten, each grant in a container of its own, and after each row\n" +
			"the floor program measures the same container. Cold ones are the first of a user who has never been seen. With the\n" +
			"grant they include Docker's work for an interface on the bridge, and the service's for its address, rules and names.\n" +
			"Cold has no target.",
		head: row([]string{"runtime", "exec"}, percentileColumns),
	}
	for _, r := range f.runtimes {
		n := r.network
		s.rows = append(s.rows,
			row([]string{r.runtime, "warm, without"}, percentiles(n.without)),
			row([]string{r.runtime, "warm, `@network`"}, percentiles(n.with)),
			row([]string{r.runtime, "floor, without"}, percentiles(n.floorWithout)),
			row([]string{r.runtime, "floor, `@network`"}, percentiles(n.floorWith)),
			row([]string{r.runtime, "cold, without"}, percentiles(n.coldWithout)),
			row([]string{r.runtime, "cold, `@network`"}, percentiles(n.coldWith)))
		s.verdicts = append(s.verdicts, atMost(r.runtime, "p50 of warm, `@network` ÷ without", ratio(n.with.median(), n.without.median()), warmNetworkTarget))
	}
	return s
}

func guardSection(f findings) section {
	s := section{
		title: "The guard",
		how: fmt.Sprintf("A stream is one download of %s by `curl` over HTTP/1.1 and TLS from an origin of the test internet, measured inside\n"+
			"from its first byte to its last. The ways take turns in rounds. The table has the medians; the ratio is the median\n"+
			"of the rounds' ratios. guard: a call that may reach the origin by name, so the service is in the way. direct: a call\n"+
			"of the same user that may reach everything, so the host forwards its packets. haproxy: the same as direct, but to a\n"+
			"HAProxy in the test internet that reads the name, connects to the origin and splices, as the guard does; it shows\n"+
			"what a proxy costs here. The origin, curl and the proxies share the machine's cores. A Python program inside makes\n"+
			"the connections to the origin's address, in rows of ten for each way. Over direct is the median of the rows'\n"+
			"differences: each row's median less that of the direct row of the same turn. Processor is what sandboxd, or HAProxy,\n"+
			"runs for one connection, from its beginning to its end. Finally, a program keeps %d connections open through the\n"+
			"guard, each of which it has used once: sandboxd's resident memory before and with them, each after 3 s of quiet.", mib(guardStream(f.settings)), idleConnections),
		head: []string{"runtime", "way", "streams", "MB/s", "connections", "TCP, p50", "TCP and TLS, p50", "p95", "p99", "over direct", "processor, µs", "idle", "sockets", "sandboxd before", "sandboxd with them"},
	}
	for _, r := range f.runtimes {
		g := r.guard
		cells := func(way string, c connections, over, processor string, idle ...string) []string {
			return append([]string{
				r.runtime, way, fmt.Sprint(len(c.streams)), megabytes(c.streams.median()), fmt.Sprint(len(c.secure)), millis(c.connect.median()),
				millis(c.secure.median()), millis(c.secure.percentile(95)), millis(c.secure.percentile(99)), over, processor,
			}, idle...)
		}
		s.rows = append(s.rows,
			cells("guard", g.guard, millis(apart(g.guard.secure, g.direct.secure)), micros(g.guard.each()-g.direct.each()), fmt.Sprint(g.idle), fmt.Sprint(g.sockets), mib(g.before), mib(g.during)),
			cells("direct", g.direct, "", "", "", "", "", ""),
			cells("haproxy", g.proxy, millis(apart(g.proxy.secure, g.direct.secure)), micros(g.proxy.each()), "", "", "", ""))
		s.verdicts = append(s.verdicts,
			atLeast(r.runtime, "speed of a stream, guard ÷ direct", paired(g.guard.streams, g.direct.streams), guardStreamTarget),
			below(r.runtime, "p50 of TCP and TLS, guard − direct", apart(g.guard.secure, g.direct.secure), guardHandshakeTarget),
			idleVerdict(r.runtime, g))
	}
	return s
}

// idleVerdict returns a verdict that is met only if all connections were open.
func idleVerdict(runtime string, g guarded) verdict {
	added := g.during - g.before
	return judge(runtime, fmt.Sprintf("memory for %d idle connections", idleConnections), "under 60 MB",
		fmt.Sprintf("%s for %d", mib(added), g.idle), float64(added), g.idle == idleConnections && added < guardIdleTarget)
}
