package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// What durable processes must reach. The number of adopted ones has a target under gVisor only.
const (
	startTarget   = 1.3
	writingTarget = 100e6
	adoptRuntime  = "runsc"
	adoptTarget   = 3 * time.Second
)

func processesSection(f findings) section {
	s := section{
		title: "Durable processes",
		how: "Start: a POST of a command that prints a line and sleeps, and then reading the log's file every 0.2 ms until\n" +
			"the line is there; docker run -d: create and start through the Engine API, with the sandbox's own image, user\n" +
			"and host configuration but the engine's default log, and then following that log until the line comes. They\n" +
			"take turns, each turn begins with the other one, and each container is removed before the next.\n" +
			"\n" +
			"Adopting: processes that sleep; sandboxd is killed by SIGKILL, one more process is killed by the engine, and\n" +
			"sandboxd is started again. The time is from that start until the list says that this one has ended, which\n" +
			"only the engine can have told, and that all others run with the pid and the start that they had, never\n" +
			"restarted. At last some of them are stopped through the API.",
		head: row([]string{"runtime", "what"}, append(slices.Clone(percentileColumns), "longest")),
	}
	logs := [][]string{}
	for _, r := range f.runtimes {
		d := r.processes
		a, w := d.adoption, d.writing
		for _, line := range []struct {
			what string
			took sample
		}{
			{"start, until the line is in the log", d.started},
			{"start, until POST answers", d.answered},
			{"docker run -d, until the line is in its log", d.run},
			{fmt.Sprintf("adopting %d, until sandboxd answers", a.processes), a.answers},
			{fmt.Sprintf("adopting %d, until all are adopted", a.processes), a.adopted},
			{"stopping an adopted one", a.stop},
		} {
			s.rows = append(s.rows, append(row([]string{r.runtime, line.what}, percentiles(line.took)), millis(line.took.percentile(100))))
		}
		logs = append(logs, []string{
			r.runtime, fmt.Sprint(len(w.log)), megabytes(w.log.median()), megabytes(w.file.median()), megabytes(w.dropped.median()),
			fmt.Sprint(w.lost), fmt.Sprint(w.lines), fmt.Sprint(w.files),
		})
		s.verdicts = append(s.verdicts, atMost(r.runtime, "p50 of start ÷ docker run -d", ratio(d.started.median(), d.run.median()), startTarget))
		if r.runtime == adoptRuntime {
			slowest := a.adopted.percentile(100)
			s.verdicts = append(s.verdicts, judge(
				r.runtime, fmt.Sprintf("adopting %d processes, longest", f.settings.processes), fmt.Sprintf("at most %d ms", adoptTarget.Milliseconds()),
				fmt.Sprintf("%s ms for %d", millis(slowest), a.processes), float64(slowest),
				a.processes > 0 && a.processes == a.asked && slowest <= adoptTarget))
		}
		s.verdicts = append(s.verdicts, writingVerdicts(r.runtime, w)...)
	}
	s.more = []table{writingTable(f.settings, logs)}
	return s
}

func writingVerdicts(runtime string, w writing) []verdict {
	kept := w.fault
	if kept == "" {
		kept = "whole"
	}
	return []verdict{
		judge(runtime, "log", fmt.Sprintf("at least %s MB/s", megabytes(writingTarget)), megabytes(w.log.median())+" MB/s", w.log.median(), w.log.median() >= writingTarget),
		counted(runtime, "lost bytes of the log", int(w.lost)),
		judge(runtime, "end of the log", "whole", kept, math.NaN(), w.fault == "" && w.lines > 0),
	}
}

// writingTable is the section's second table, with what it means.
func writingTable(cfg settings, rows [][]string) table {
	how := fmt.Sprintf("Logs: `seq` prints %s of numbered lines of %d bytes while sandboxd is stopped, into a log that may keep a\n", mib(cfg.logBytes), lineBytes) +
		"quarter of that. The time is from the sign to begin, which the process looks for every 10 ms, until its state\n" +
		"says that it has ended. Every line kept must follow the one before, also from file to file, up to the last one\n" +
		"printed. In turn with it, execs run the same `seq` into a file in /tmp, a folder of the host like the log's, and into\n" +
		"/dev/null."
	return table{how, []string{"runtime", "rounds", "log, MB/s", "file, MB/s", "/dev/null, MB/s", "lost bytes", "lines kept", "files"}, rows}
}
