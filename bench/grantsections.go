package main

// grantsTarget is how long a call with grants may take, relative to one without.
const grantsTarget = 1.05

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
