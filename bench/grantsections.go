package main

import (
	"fmt"
	"time"
)

// These are the targets: the time of a decision, and the time of a call with grants relative to one
// without.
const (
	decidingTarget = 50 * time.Microsecond
	grantsTarget   = 1.05
)

func decidingSection(f findings) section {
	d := f.deciding
	return section{
		title: "Deciding",
		how: fmt.Sprintf("A sandbox with %d mounts has a call with %d tags. Three steps are timed: policy's decision on what the call may see,\n"+
			"the Spec made from it (a mount for each region that can be read, a mask for each hidden one, and the pins), and the\n"+
			"Spec's fingerprint, by which the container is found. Each is timed by itself in the benchmark's own process; the\n"+
			"host is not looked at. Beside them are the sum for a call without tags to the same sandbox, by turns, and the\n"+
			"reading of the tags, which is not in the sum. Times of this table are in microseconds.", decidingMounts, decidingTags),
		head: row([]string{"what, µs"}, percentileColumns),
		rows: [][]string{
			row([]string{"reading the tags"}, percentilesIn(d.tags, micros)),
			row([]string{"decision"}, percentilesIn(d.decide, micros)),
			row([]string{"Spec"}, percentilesIn(d.spec, micros)),
			row([]string{"fingerprint"}, percentilesIn(d.fingerprint, micros)),
			row([]string{"decision, Spec and fingerprint"}, percentilesIn(d.all, micros)),
			row([]string{"the same without tags"}, percentilesIn(d.bare, micros)),
		},
		verdicts: []verdict{below("any", "p50 of decision, Spec and fingerprint", d.all.median(), decidingTarget)},
	}
}

func grantsSection(f findings) section {
	s := section{
		title: "Grants",
		how: "A warm exec of `true` through the API, by what it is granted: calls without grants; calls with `@workspace`; and\n" +
			"calls that ask for nothing, `@workspace` and `@write:/home/out` in turn, so that each goes to another container than\n" +
			"the one before. All three containers were used before the first call that counts. The ways take turns in rows of\n" +
			"ten, and each turn begins with another one. Paused is a call without grants after a pause as long as two calls: so\n" +
			"long is each container idle where three take turns. A cold call is one that found no container.",
		head: row([]string{"runtime", "grants"}, percentileColumns),
	}
	for _, r := range f.runtimes {
		g := r.grants
		s.rows = append(s.rows,
			row([]string{r.runtime, "none"}, percentiles(g.none)),
			row([]string{r.runtime, "`@workspace`"}, percentiles(g.workspace)),
			row([]string{r.runtime, "alternating"}, percentiles(g.alternating)),
			row([]string{r.runtime, "none, paused"}, percentiles(g.paused)))
		s.verdicts = append(s.verdicts,
			counted(r.runtime, "cold calls among those that count", g.cold),
			atMost(r.runtime, "p50 of `@workspace` ÷ none", ratio(g.workspace.median(), g.none.median()), grantsTarget),
			atMost(r.runtime, "p50 of alternating ÷ none", ratio(g.alternating.median(), g.none.median()), grantsTarget))
	}
	return s
}
