package main

import "slices"

// startTarget is how long a start may take, relative to docker run -d.
const startTarget = 1.3

func processesSection(f findings) section {
	s := section{
		title: "Durable processes",
		how: "Start: a POST of a command that prints a line and sleeps; then the log's file is read every 0.2 ms until the line is\n" +
			"there. docker run -d: create and start through the Engine API, with the sandbox's own image, user and host\n" +
			"configuration but Docker's default log; then that log is followed until the line comes. They take turns, each turn\n" +
			"begins with the other one, and each container is removed before the next.",
		head: row([]string{"runtime", "what"}, append(slices.Clone(percentileColumns), "longest")),
	}
	for _, r := range f.runtimes {
		d := r.processes
		for _, line := range []struct {
			what string
			took sample
		}{
			{"start, until the line is in the log", d.started},
			{"start, until POST answers", d.answered},
			{"docker run -d, until the line is in its log", d.run},
		} {
			s.rows = append(s.rows, append(row([]string{r.runtime, line.what}, percentiles(line.took)), millis(line.took.percentile(100))))
		}
		s.verdicts = append(s.verdicts, atMost(r.runtime, "p50 of start ÷ docker run -d", ratio(d.started.median(), d.run.median()), startTarget))
	}
	return s
}
