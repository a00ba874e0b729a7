package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// These are the targets of durable processes. Adoption has a target under gVisor only.
const (
	startTarget   = 1.3
	writingTarget = 100e6
	adoptRuntime  = "runsc"
	adoptTarget   = 3 * time.Second
)

func processesSection(f findings) section {
	s := section{
		title: "Durable processes",
		how: "Start: a POST of a command that prints a line and sleeps; then the log's file is read every 0.2 ms until the line is\n" +
			"there. docker run -d: create and start through the Engine API, with the sandbox's own image, user and host\n" +
			"configuration but Docker's default log; then that log is followed until the line comes. They take turns, each turn\n" +
			"begins with the other one, and each container is removed before the next.\n" +
			"\n" +
			"Adopting: while processes sleep, sandboxd is killed by SIGKILL, one more process is killed by Docker, and sandboxd\n" +
			"is started again. The time is from that start until the list says that this one has ended, which only Docker can\n" +
			"have told, and that all others run with the pid and the start that they had, never restarted. Finally, some of them\n" +
			"are stopped through the API.",
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

// writingTable returns the section's second table, with its explanation.
func writingTable(cfg settings, rows [][]string) table {
	how := fmt.Sprintf("Logs: `seq` prints %s of numbered lines of %d bytes while sandboxd is stopped, into a log that may keep a quarter of\n"+
		"that. The time is from the sign to begin, which the process looks for every 10 ms, until its state says that it has\n"+
		"ended. Every line kept must follow the one before, also from file to file, up to the last one printed. By turns with\n"+
		"it, execs run the same `seq` into a file in /tmp, a folder of the host like the log's, and into /dev/null.", mib(cfg.logBytes), lineBytes)
	return table{how, []string{"runtime", "rounds", "log, MB/s", "file, MB/s", "/dev/null, MB/s", "lost bytes", "lines kept", "files"}, rows}
}
