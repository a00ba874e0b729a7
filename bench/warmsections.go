package main

import (
	"fmt"
	"time"
)

// warmTarget is for the medians of warm commands under one runtime. What is 0 is not asked for.
type warmTarget struct {
	// docker is how many times faster `true` is than docker exec, and floor how many times the floor it takes, when
	// calls come at once.
	docker, floor float64
	// program and programFloor are for `true`, shell, shellFloor and lsFloor for the shell, when calls come one after the
	// other and after a rest: a time, and a part of what the program takes inside. Those of the shell are parts of bash's own.
	program, shell                    time.Duration
	programFloor, shellFloor, lsFloor float64
	// ready is until the next command's shell has started.
	ready time.Duration
	// line is for the whole command line; session is how many times faster a session is than by docker exec.
	line    time.Duration
	session float64
}

// What must be reached. A runtime that is not named has no such target.
var warmTargets = map[string]warmTarget{
	"runc": {docker: 20, floor: 3, program: 2 * time.Millisecond, shell: 1500 * time.Microsecond, lsFloor: 1.1,
		ready: 10 * time.Millisecond, line: 8 * time.Millisecond, session: 10},
	"runsc": {docker: 3, floor: 1.6, programFloor: 1.25, shell: 5 * time.Millisecond, shellFloor: 0.35, lsFloor: 0.7,
		ready: 60 * time.Millisecond, line: 12 * time.Millisecond, session: 4},
}

func warmSection(f findings) section {
	s := section{
		title: "Warm commands",
		how: "Through the API: one POST on a kept connection, until the answer with the exit code is decoded. `true` is a\n" +
			"program (`argv`), a shell's is a command line (`command`). After a rest: the call comes " + millis(rest) + " ms" + " after the\n" +
			"answer of the one before, as from a caller who thinks in between; one after the other: it comes when the next\n" +
			"command's shell has started, which is " + millis(shellStarts["runsc"]) + " ms later under gVisor and " + millis(shellStarts["runc"]) + " under runc; at once: it comes when that has answered.\n" +
			"docker exec: create, attach, read to the end, inspect, through the Engine API on the same container, of the\n" +
			"same program or of `bash -c`. The floor is a program inside this container that starts the same by vfork and\n" +
			"exec and waits for it, at once or with the same rest before. They take turns in rows of ten; docker exec has every third turn, and a pause after it, in\n" +
			"which the engine tidies up. Ready is by how much a shell's call that comes at once takes longer than the\n" +
			"median of those that come after a rest: until then the next command's shell has not started. bash as a\n" +
			"program is what a shell's command takes that has to start its shell.",
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

func lineSection(f findings) section {
	s := section{
		title: "The command line",
		how: "`sandbox exec --user USER -- true` as a process, from its start to its end, beside `docker exec CONTAINER bash -c\n" +
			"true` as one, on the same container, and `sandbox --help`, which asks nobody. They take turns in rows of ten,\n" +
			"with " + millis(rest) + " ms" + " between calls.",
		head: row([]string{"runtime", "command"}, percentileColumns),
	}
	for _, r := range f.runtimes {
		s.rows = append(s.rows,
			row([]string{r.runtime, "`sandbox exec`"}, percentiles(r.line.sandbox)),
			row([]string{r.runtime, "`docker exec`"}, percentiles(r.line.docker)),
			row([]string{r.runtime, "`sandbox --help`"}, percentiles(r.line.floor)))
		if target, ok := warmTargets[r.runtime]; ok {
			s.verdicts = append(s.verdicts, within(r.runtime, "p50 of `sandbox exec`", r.line.sandbox.median(), target.line))
		}
	}
	return s
}

func sessionSection(f findings) section {
	s := section{
		title: "A session of an agent's commands",
		how: fmt.Sprintf("%d shell commands in a small repository in /tmp, each %s ms after the answer of the one before: ls, cat, grep, sed,\n", f.settings.session, millis(rest)) +
			"git status, git diff, find, head and tail, `python3 -c`, and one that fails. Through the API as in \"Warm commands\", and by\n" +
			"docker exec of `bash -c`; they take turns in rows of ten different ones. In a shell: the same in one bash that runs\n" +
			"inside, one after the other without a rest, which is the commands' own time, and no way of running them could be faster.",
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

// What a container may have in which nothing runs.
const (
	shellMemoryTarget = int64(3 << 20)
	shellBusyTarget   = 100 * time.Microsecond
	agentTarget       = int64(12 << 20)
)

func restSection(f findings) section {
	s := section{
		title: "Containers at rest",
		how: fmt.Sprintf("%d containers each, %s s after ten commands: as they are by default, with the next command's shell waiting; with\n", f.settings.rests, seconds(quiet)) +
			"`exec.ahead` 0; and with a program that sleeps in the agent's place. Memory is the proportional set size (PSS) of all\n" +
			"of a container's processes on the host, under gVisor its kernel's and its file server's, where those that\n" +
			"share an address space are one; processor time is theirs in a\n" +
			fmt.Sprintf("second, over %s s. Medians. That a shell waits is seen in \"Warm commands\".", seconds(restWindow)),
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
		if more <= 0 { // no shell waits, or what it takes is lost among what else differs
			s.verdicts = append(s.verdicts, missing(r.runtime, memory, "at most 3 MiB"), missing(r.runtime, busy, "under 100 µs"))
			continue
		}
		s.verdicts = append(s.verdicts,
			sized(r.runtime, memory, "at most 3 MiB", more, shellMemoryTarget),
			below(r.runtime, busy, x.waiting.busy.median()-x.alone.busy.median(), shellBusyTarget))
	}
	return s
}
