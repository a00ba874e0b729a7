package main

import (
	"fmt"
	"time"
)

// warmTarget holds the targets for the medians of warm commands under one runtime. 0 means no
// target.
type warmTarget struct {
	// docker is how many times faster than docker exec `true` must be when calls come at once;
	// floor is how many times the floor it may take then.
	docker, floor float64
	// program and programFloor are for `true`; shell, shellFloor and lsFloor are for the shell.
	// They hold for calls that come one after the other or after a rest: a time, and a multiple of
	// the program's time inside, for the shell of bash's.
	program, shell                    time.Duration
	programFloor, shellFloor, lsFloor float64
	// ready is the time until the next command's shell has started.
	ready time.Duration
	// session is how many times faster than by docker exec a session must be.
	session float64
}

// These are the targets. A runtime that is not named has no such target.
var warmTargets = map[string]warmTarget{
	"runc": {docker: 20, floor: 3, program: 2 * time.Millisecond, shell: 1500 * time.Microsecond, lsFloor: 1.1,
		ready: 10 * time.Millisecond, session: 10},
	"runsc": {docker: 3, floor: 1.6, programFloor: 1.25, shell: 5 * time.Millisecond, shellFloor: 0.35, lsFloor: 0.7,
		ready: 60 * time.Millisecond, session: 4},
}

func warmSection(f findings) section {
	s := section{
		title: "Warm commands",
		how: fmt.Sprintf("Through the API: one POST on a kept connection, until the answer with the exit code is decoded. `true` is a program\n"+
			"(`argv`), a shell's is a command line (`command`). After a rest: the call comes %s ms after the previous answer, as\n"+
			"from a caller who thinks in between. One after the other: it comes when the next command's shell has started, %s ms\n"+
			"after the previous answer under gVisor and %s under runc. At once: it comes when the previous call has answered.\n"+
			"docker exec: create, attach, read to the end and inspect, through the Engine API on the same container, of the same\n"+
			"program or of `bash -c`. The floor is a program inside this container that starts the same by vfork and exec and\n"+
			"waits for it, at once or after the same rest. The ways take turns in rows of ten; docker exec has every third turn,\n"+
			"and then a pause in which Docker tidies up. Ready is how much longer a shell's call at once takes than the median of\n"+
			"those after a rest: until then the next command's shell has not started. bash as a program shows what a shell's\n"+
			"command takes that has to start its shell.", millis(rest), millis(shellStarts["runsc"]), millis(shellStarts["runc"])),
		head: row([]string{"runtime", "command", "way"}, percentileColumns),
	}
	for _, r := range f.runtimes {
		for _, c := range r.warm {
			s.rows = append(s.rows,
				row([]string{r.runtime, c.name, "API, after a rest"}, percentiles(c.rested)),
				row([]string{r.runtime, c.name, "API, one after the other"}, percentiles(c.next)),
				row([]string{r.runtime, c.name, "API, at once"}, percentiles(c.atOnce)))
			if len(c.argv) > 0 {
				s.rows = append(s.rows,
					row([]string{r.runtime, c.name, "docker exec"}, percentiles(c.docker)),
					row([]string{r.runtime, c.name, "floor, after a rest"}, percentiles(c.floorRested)),
					row([]string{r.runtime, c.name, "floor"}, percentiles(c.floor)))
			}
		}
		ready, _ := r.warm.ready()
		s.rows = append(s.rows, row([]string{r.runtime, "the next shell", "ready"}, percentiles(ready)))
		if target, ok := warmTargets[r.runtime]; ok {
			s.verdicts = append(s.verdicts, warmVerdicts(r.runtime, r.warm, target)...)
		}
	}
	return s
}

func warmVerdicts(runtime string, w warm, target warmTarget) (list []verdict) {
	if len(w) == 0 {
		w = warmCommands()
	}
	program, shell, ls := w[programTrue], w[shellTrue], w[shellLs]
	list = append(list,
		atLeast(runtime, "`true`, at once: p50 of docker exec ÷ API", ratio(program.docker.median(), program.atOnce.median()), target.docker),
		atMost(runtime, "`true`, at once: p50 of API ÷ floor", ratio(program.atOnce.median(), program.floor.median()), target.floor))
	for _, when := range []struct {
		name  string
		call  func(warmCommand) time.Duration
		floor func(warmCommand) time.Duration
	}{
		{"one after the other", func(c warmCommand) time.Duration { return c.next.median() }, func(c warmCommand) time.Duration { return c.floor.median() }},
		{"after a rest", func(c warmCommand) time.Duration { return c.rested.median() }, func(c warmCommand) time.Duration { return c.floorRested.median() }},
	} {
		bash := when.floor(shell)
		if target.program > 0 {
			list = append(list, within(runtime, "`true`, "+when.name+": p50 of API", when.call(program), target.program))
		}
		if target.programFloor > 0 {
			list = append(list, atMost(runtime, "`true`, "+when.name+": p50 of API ÷ floor", ratio(when.call(program), when.floor(program)), target.programFloor))
		}
		list = append(list, within(runtime, "shell `true`, "+when.name+": p50 of API", when.call(shell), target.shell))
		if target.shellFloor > 0 {
			list = append(list, atMost(runtime, "shell `true`, "+when.name+": p50 of API ÷ start of bash inside", ratio(when.call(shell), bash), target.shellFloor))
		}
		list = append(list, atMost(runtime, "shell `ls`, "+when.name+": p50 of API ÷ start of bash inside", ratio(when.call(ls), bash), target.lsFloor))
	}
	const what = "p99 until the next command's shell is ready"
	if ready, is := w.ready(); is {
		return append(list, within(runtime, what, ready.percentile(99), target.ready))
	}
	return append(list, missing(runtime, what, fmt.Sprintf("at most %g ms", inMillis(target.ready))))
}

func sessionSection(f findings) section {
	s := section{
		title: "A session of an agent's commands",
		how: fmt.Sprintf("%d shell commands in a small repository in /tmp, each %s ms after the previous answer: ls, cat, grep, sed, git\n"+
			"status, git diff, find, head and tail, `python3 -c`, and one that fails. Through the API as in \"Warm commands\", and\n"+
			"by docker exec of `bash -c`; the two take turns in rows of ten different commands. In a shell: the same in one bash\n"+
			"that runs inside, without a rest in between. That is the commands' own time, and no way of running them could be\n"+
			"faster.", f.settings.session, millis(rest)),
		head: []string{"runtime", "way", "n", "mean", "p50", "p95", "p99"},
	}
	for _, r := range f.runtimes {
		for _, way := range []struct {
			name string
			took sample
		}{{"API", r.typical.api}, {"docker exec", r.typical.docker}, {"in a shell", r.typical.inside}} {
			cells := percentiles(way.took)
			s.rows = append(s.rows, append([]string{r.runtime, way.name, cells[0], millis(way.took.mean())}, cells[1:]...))
		}
		if target, ok := warmTargets[r.runtime]; ok {
			s.verdicts = append(s.verdicts, atLeast(r.runtime, "mean of docker exec ÷ API", ratio(r.typical.docker.mean(), r.typical.api.mean()), target.session))
		}
	}
	return s
}

// A container in which nothing runs may use this much.
const (
	shellMemoryTarget = int64(3 << 20)
	shellBusyTarget   = 100 * time.Microsecond
	agentTarget       = int64(12 << 20)
)

func restSection(f findings) section {
	s := section{
		title: "Containers at rest",
		how: fmt.Sprintf("%d containers each, %s s after ten commands: with the defaults, where the next command's shell waits; with\n"+
			"`exec.ahead` 0; and with a program that sleeps in the agent's place. Memory is the proportional set size (PSS) of\n"+
			"all of a container's processes on the host. Under gVisor these are its kernel's and its file server's; those that\n"+
			"share an address space count as one. Processor time is theirs in a second, over %s s. Medians. \"Warm commands\" shows\n"+
			"that a shell waits.", f.settings.rests, seconds(quiet), seconds(restWindow)),
		head: []string{"runtime", "inside", "memory", "processor, µs a second"},
	}
	for _, r := range f.runtimes {
		x := r.resting
		for _, one := range []struct {
			name string
			atRest
		}{{"the agent and a shell that waits", x.waiting}, {"the agent", x.alone}, {"`sleep`", x.bare}} {
			s.rows = append(s.rows, []string{r.runtime, one.name, mib(medianOf(one.memory)), micros(one.busy.median())})
		}
		s.verdicts = append(s.verdicts, sized(r.runtime, "the agent's memory", "at most 12 MiB", medianOf(x.alone.memory)-medianOf(x.bare.memory), agentTarget))
		memory, busy := "memory of a shell that waits", "processor time of a shell that waits, in a second"
		more := medianOf(x.waiting.memory) - medianOf(x.alone.memory)
		if more <= 0 { // no shell waits, or its memory is lost among the other differences
			s.verdicts = append(s.verdicts, missing(r.runtime, memory, "at most 3 MiB"), missing(r.runtime, busy, "under 100 µs"))
			continue
		}
		s.verdicts = append(s.verdicts,
			sized(r.runtime, memory, "at most 3 MiB", more, shellMemoryTarget),
			below(r.runtime, busy, x.waiting.busy.median()-x.alone.busy.median(), shellBusyTarget))
	}
	return s
}
