package main

import (
	"fmt"
	"time"
)

// What must be reached.
const (
	forwardedTarget, heldTarget      = time.Millisecond, 100 * time.Microsecond
	claimTarget, claimsTarget        = 10 * time.Millisecond, 2 * time.Second
	answeredTarget, lastAnswerTarget = 15 * time.Second, 20 * time.Second
	threeHostsTarget                 = 2.7
)

func clusterSection(f findings) section {
	s := section{
		title: "Several hosts",
		how: "Three services with a fence each share one Docker, a folder of homes and an etcd of one member that syncs to the disk.\n" +
			"Warm execs of `true` take turns in rows, at the host that holds the user, at another, and at a service without\n" +
			"`cluster`. Overhead is an exec's time less that which the service says it took (`durationMs`). All that a cluster adds\n" +
			"to a call is in that, the way to another host and back as well; the rest is the container's own, by which two\n" +
			"services without `cluster` are apart, too. A claim is a new user's PUT, the record included;\n" +
			fmt.Sprintf("%d users come %d at a time to all three. A host is lost by killing its sandboxd, its fence and\n", manyUsers, clusterAtOnce) +
			fmt.Sprintf("that one's guard, %d times, and another is called until it answers.", losses),
		head: row([]string{"runtime", "what"}, append(percentileColumns[:4:4], "last")),
	}
	for _, r := range f.runtimes {
		c := r.cluster
		if r.runtime != clusterRuntime {
			continue
		}
		for _, line := range []struct {
			what string
			of   sample
		}{
			{"exec, held", c.held}, {"exec, held by another host", c.forwarded}, {"exec, without cluster", c.alone},
			{"overhead, held", c.heldOverhead}, {"overhead, held by another host", c.forwardedOverhead}, {"overhead, without cluster", c.aloneOverhead},
			{"PUT of a new user", c.first}, {fmt.Sprintf("%d of them", manyUsers), c.many}, {"first answer after a loss", c.answered},
		} {
			s.rows = append(s.rows, row([]string{r.runtime, line.what}, append(percentiles(line.of), millis(line.of.percentile(100)))))
		}
		s.verdicts = append(s.verdicts, clusterVerdicts(r.runtime, c)...)
		s.more = append(s.more, table{
			how: fmt.Sprintf("At last three hosts have a Docker each, and the same share of the processors: all of a host, its containers, Docker, the\n"+
				"service and the fence, is in one control group that has %g %% of them, and callers and etcd have the rest. Each holds two\n"+
				"of %d users, each of whom has %d calls at a time for %g s: those of one host come to that one, while\n"+
				"a loop uses up the share of each other host, for gVisor's threads spin where processors are idle; those of\n"+
				"all come to the three in turn, two thirds of them to one that does not hold the user, or each to the one that does. The three ways\n"+
				"take turns, %d times for each host. Execs in a second, medians:", 100*sharePart, sharedUsers, callsOfUser, shareWindow.Seconds(), shareRounds),
			head: []string{"runtime", "one host", "three hosts", "three, each user's own"},
			rows: [][]string{{r.runtime, fmt.Sprintf("%.1f", c.oneHost.median()), fmt.Sprintf("%.1f", c.allHosts.median()), fmt.Sprintf("%.1f", c.ownDoors.median())}},
		})
	}
	return s
}

// clusterVerdicts hold what was measured against the targets.
func clusterVerdicts(runtime string, c clustered) (list []verdict) {
	for _, of := range []struct {
		sample   sample
		what     string
		measured time.Duration
		target   time.Duration
	}{
		{c.forwarded, "overhead at another host, p50 above the holder's", apart(c.forwardedOverhead, c.heldOverhead), forwardedTarget},
		{c.held, "overhead at the holder, p50 above a service without cluster", apart(c.heldOverhead, c.aloneOverhead), heldTarget},
		{c.first, "claim of a seat, p50", c.first.median(), claimTarget},
		{c.many, fmt.Sprintf("%d claims", manyUsers), c.many.median(), claimsTarget},
		{c.answered, "first answer after a loss, p50", c.answered.median(), answeredTarget},
		{c.answered, "first answer after a loss, worst", c.answered.percentile(100), lastAnswerTarget},
	} {
		v := within(runtime, of.what, of.measured, of.target)
		if len(of.sample) == 0 {
			v = missing(runtime, of.what, v.target)
		}
		list = append(list, v)
	}
	v := atLeast(runtime, "warm execs, three hosts ÷ one with equal processors", paired(c.allHosts, c.oneHost), threeHostsTarget)
	if len(c.allHosts) == 0 {
		v = missing(runtime, v.what, v.target)
	}
	return append(list, v)
}
