package main

import (
	"fmt"
	"slices"
)

// These are the targets. A runtime that is not named has no such target.
var (
	streamTargets     = map[string]float64{"runsc": 2}
	coldTarget        = 1.15
	togetherTarget    = 1.3
	daemonTarget      = int64(40e6)
	percentileColumns = []string{"n", "p50", "p95", "p99"}
)

func row(cells []string, more []string) []string { return slices.Concat(cells, more) }

func coldSection(f findings) section {
	s := section{
		title: "Cold exec of `true`",
		how: "Through the API: the first exec of a user who has never been seen, until the answer is decoded. It includes making\n" +
			"the home and the container, starting it, and the agent's session; the container stays. docker run: create, attach,\n" +
			"start and read to the end, through the Engine API, with the sandbox's own image, user and host configuration\n" +
			"(mounts, limits, security options, no network). With `--rm` the time ends when the container has exited and is\n" +
			"removed; without it, when it has exited. The three take turns, and each turn begins with another one.",
		head: row([]string{"runtime", "way"}, percentileColumns),
	}
	for _, r := range f.runtimes {
		s.rows = append(s.rows,
			row([]string{r.runtime, "API, no container yet"}, percentiles(r.cold.api)),
			row([]string{r.runtime, "docker run --rm"}, percentiles(r.cold.run)),
			row([]string{r.runtime, "docker run, until exit"}, percentiles(r.cold.exit)))
		s.verdicts = append(s.verdicts, atMost(r.runtime, "p50 of API ÷ docker run --rm", ratio(r.cold.api.median(), r.cold.run.median()), coldTarget))
	}
	return s
}

func togetherSection(f findings) section {
	s := section{
		title: fmt.Sprintf("%d execs of `true` at once in one container", atOnce),
		how: "The time until the last one has ended. The floor is the floor program with as many threads, each of which starts\n" +
			"one; it is timed inside. API and floor take turns; fewer rounds of docker exec follow. Failures are those of all\n" +
			"rounds through the API, including the one that opens the connections.",
		head: row([]string{"runtime", "way"}, append(slices.Clone(percentileColumns), "failures")),
	}
	for _, r := range f.runtimes {
		t := r.together
		s.rows = append(s.rows,
			row([]string{r.runtime, "API"}, append(percentiles(t.api), fmt.Sprint(t.failures))),
			row([]string{r.runtime, "docker exec"}, append(percentiles(t.docker), "")),
			row([]string{r.runtime, "floor"}, append(percentiles(t.floor), "")))
		s.verdicts = append(s.verdicts,
			counted(r.runtime, "failures", t.failures),
			atMost(r.runtime, "p50 of API ÷ floor", ratio(t.api.median(), t.floor.median()), togetherTarget))
	}
	return s
}

func streamSection(f findings) section {
	s := section{
		title: fmt.Sprintf("A stream of %s", mib(f.settings.streamBytes)),
		how: "A program's output through an attached exec of the API, and through docker exec with the Engine client's own\n" +
			"demultiplexer; the reader drops it as it comes. `head` writes at most 8 KiB at a time, `dd` 1 MiB. Each takes its\n" +
			"turn in every round; the table has the medians. Every byte is counted.",
		head: []string{"runtime", "program", "rounds", "API, MB/s", "docker exec, MB/s", "ratio"},
	}
	for _, r := range f.runtimes {
		target, judged := streamTargets[r.runtime]
		for _, p := range r.streams {
			faster := p.api.median() / p.docker.median()
			s.rows = append(s.rows, []string{r.runtime, p.name, fmt.Sprint(len(p.api)), megabytes(p.api.median()), megabytes(p.docker.median()), times(faster)})
			if judged {
				s.verdicts = append(s.verdicts, atLeast(r.runtime, p.name+", API ÷ docker exec", faster, target))
			}
		}
	}
	return s
}

func memorySection(f findings) section {
	s := section{
		title: "Memory at rest",
		how: "Resident memory (VmRSS). sandboxd is measured with one container after its first exec and 3 s of quiet, and again\n" +
			"with the same container at the end of everything above. The agent's is what /proc inside says of all its processes;\n" +
			"what it costs the host is in \"Containers at rest\".",
		head: []string{"runtime", "sandboxd", "sandboxd at the end", "agent's processes", "agent"},
	}
	for _, r := range f.runtimes {
		m := r.memory
		s.rows = append(s.rows, []string{r.runtime, mib(m.daemon), mib(m.daemonEnd), fmt.Sprint(m.agents), mib(m.agent)})
		s.verdicts = append(s.verdicts, sized(r.runtime, "sandboxd", "at most 40 MB", m.daemon, daemonTarget))
	}
	return s
}
