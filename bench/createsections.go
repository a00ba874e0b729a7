package main

import (
	"fmt"
	"strings"
	"time"
)

// These are the targets. A runtime that is not named has no such target.
var (
	pooledTargets = map[string][2]time.Duration{
		"runsc": {30 * time.Millisecond, 60 * time.Millisecond}, "runc": {15 * time.Millisecond, 40 * time.Millisecond},
	}
	pooledBurstTargets = map[string]time.Duration{"runsc": 150 * time.Millisecond}
	frozenTargets      = map[string]time.Duration{"runsc": 25 * time.Millisecond, "runc": 18 * time.Millisecond}
	burstLastTargets   = map[string]time.Duration{"runsc": 21300 * time.Millisecond}
	burstOrderTarget   = 0.6
	refillingTarget    = 1.05
	frozenTimeTarget   = 100 * time.Millisecond
)

func createSection(f findings) section {
	s := section{
		title: "Create and first command",
		how: fmt.Sprintf("The PUT of a sandbox and the first exec of `true` of a user who has never been seen, until the answer is decoded. %d\n"+
			"users come one after the other, one every 200 ms whatever becomes of those before, and all at once; their containers\n"+
			"stay until all have come. docker run is `docker run --rm`, as in \"Cold exec\". A pool has %d containers that wait. A\n"+
			"frozen user's container has been idle for `idle.freezeAfter`. Other first calls have `denyRead`, for which no pool\n"+
			"has containers. They come by turns without a pool and at any moment of a pool's being filled. Processor time is that\n"+
			"of containers' control groups in the two minutes after they were frozen.", f.settings.users, waiting),
		head: row([]string{"runtime", "users"}, append(percentileColumns, "last")),
	}
	for _, r := range f.runtimes {
		c := r.creation
		for _, line := range []struct {
			who string
			of  sample
		}{
			{"one after the other", c.one}, {"one every 200 ms", c.spaced}, {"all at once", c.burst},
			{"docker run, one after the other", c.dockerOne}, {"docker run, at once", c.dockerBurst},
			{"one after the other, a pool", c.pooled}, {"at once, a pool", c.pooledBurst},
			{"frozen, first `true`", c.frozen}, {"frozen, first shell `true`", c.frozenShell},
			{"another first call, no pool", c.alone}, {"another first call, a pool that is refilled", c.refilling},
		} {
			s.rows = append(s.rows, row([]string{r.runtime, line.who}, append(percentiles(line.of), millis(line.of.percentile(100)))))
		}
		s.verdicts = append(s.verdicts, creationVerdicts(r)...)
	}
	s.note = missedCreations(f)
	return s
}

// creationVerdicts compares one runtime's times with the targets. A time that was not measured has
// no value.
func creationVerdicts(r runtimeFindings) (list []verdict) {
	c := r.creation
	judged := func(of sample, v verdict) {
		if len(of) == 0 {
			v = missing(v.runtime, v.what, v.target)
		}
		list = append(list, v)
	}
	last := c.burst.percentile(100)
	judged(c.burst, atMost(r.runtime, "all at once: median ÷ last", ratio(c.burst.median(), last), burstOrderTarget))
	if target, is := burstLastTargets[r.runtime]; is {
		judged(c.burst, within(r.runtime, "all at once: the last", last, target))
	}
	if target, is := pooledTargets[r.runtime]; is {
		judged(c.pooled, within(r.runtime, "a pool, one after the other: p50", c.pooled.median(), target[0]))
		judged(c.pooled, within(r.runtime, "a pool, one after the other: p99", c.pooled.percentile(99), target[1]))
	}
	if target, is := pooledBurstTargets[r.runtime]; is {
		judged(c.pooledBurst, within(r.runtime, "a pool, at once: p50", c.pooledBurst.median(), target))
	}
	if target, is := frozenTargets[r.runtime]; is {
		judged(c.frozen, within(r.runtime, "frozen: p50 of the first `true`", c.frozen.median(), target))
		judged(c.frozenShell, within(r.runtime, "frozen: p50 of the first shell `true`", c.frozenShell.median(), target))
	}
	judged(c.frozenTime, judge(r.runtime, "processor time of 100 frozen containers in a minute", fmt.Sprintf("at most %g ms", inMillis(frozenTimeTarget)),
		fmt.Sprintf("%.1f ms", inMillis(c.frozenTime.median())), float64(c.frozenTime.median()), c.frozenTime.median() <= frozenTimeTarget))
	judged(c.refilling, atMost(r.runtime, "p50 of a cold start beside a refill ÷ without a pool", ratio(c.refilling.median(), c.alone.median()), refillingTarget))
	return list
}

// missedCreations says why some rows are empty.
func missedCreations(f findings) string {
	var lines []string
	for _, r := range f.runtimes {
		for _, why := range r.creation.missed {
			lines = append(lines, fmt.Sprintf("Not measured under %s: %s.", r.runtime, why))
		}
	}
	return strings.Join(lines, "\n")
}
