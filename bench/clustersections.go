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
			fmt.Sprintf("`cluster`. A claim is a new user's PUT, the record included; %d users come %d at a time to all three. A host\n", manyUsers, clusterAtOnce) +
			fmt.Sprintf("is lost by killing its sandboxd, its fence and that one's guard, %d times, and another is called until it answers.", losses),
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
			{"PUT of a new user", c.first}, {fmt.Sprintf("%d of them", manyUsers), c.many}, {"first answer after a loss", c.answered},
		} {
			s.rows = append(s.rows, row([]string{r.runtime, line.what}, append(percentiles(line.of), millis(line.of.percentile(100)))))
		}
		s.verdicts = append(s.verdicts, clusterVerdicts(r.runtime, c)...)
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
		{c.forwarded, "exec at another host, p50 above the holder's", apart(c.forwarded, c.held), forwardedTarget},
		{c.held, "exec at the holder, p50 above a service without cluster", apart(c.held, c.alone), heldTarget},
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
	return append(list, missing(runtime, "warm execs, three hosts ÷ one with equal processors", fmt.Sprintf("at least %g×", threeHostsTarget)))
}
