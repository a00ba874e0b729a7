package main

import (
	"fmt"
	"time"
)

// These are the targets.
const (
	forwardedTarget, heldTarget      = time.Millisecond, 100 * time.Microsecond
	claimTarget, claimsTarget        = 10 * time.Millisecond, 2 * time.Second
	answeredTarget, lastAnswerTarget = 15 * time.Second, 20 * time.Second
)

func clusterSection(f findings) section {
	s := section{
		title: "Several hosts",
		how: fmt.Sprintf("Three services, each with a fence, share one Docker, a folder of homes and an etcd of one member that syncs to the\n"+
			"disk. Warm execs of `true` take turns in rows: at the host that holds the user, at another, and at a service without\n"+
			"`cluster`. Overhead is an exec's time less the time that the service says it took (`durationMs`). It has all that a\n"+
			"cluster adds to a call, including the way to another host and back. The rest is the container's own, in which two\n"+
			"services without `cluster` differ, too. A claim is a new user's PUT, including the record; %d users come %d at a\n"+
			"time to all three. A host is lost by killing its sandboxd, its fence and the fence's guard, %d times; then another\n"+
			"is called until it answers.", manyUsers, clusterAtOnce, losses),
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
	}
	return s
}

// clusterVerdicts compares the measurements with the targets.
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
	return list
}
