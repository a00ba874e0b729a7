package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// warm has the times of short commands in an existing container, in the order of warmCommands.
type warm []warmCommand

// warmCommand is one command, measured each way.
type warmCommand struct {
	name string
	call types.Exec
	argv []string // the same command for docker exec and the floor program
	// atOnce are calls through the API that come when the previous one has answered, and rested are
	// calls that come some time later.
	atOnce, rested, docker sample
	// floor are starts inside at once, and floorRested starts after a rest.
	floor, floorRested sample
}

func warmCommands() warm {
	return warm{
		{name: "`true`", call: types.Exec{Argv: []string{"true"}}, argv: []string{"true"}},
		{name: "shell `true`", call: types.Exec{Command: "true"}, argv: []string{"bash", "-c", "true"}},
		{name: "shell `ls`", call: types.Exec{Command: "ls"}, argv: []string{"bash", "-c", "ls"}},
	}
}

const (
	// rest is the time between an answer and the next call, as of a caller who thinks in between.
	rest = 70 * time.Millisecond
	// dockerRow is how many docker execs come in a row: they are slow, and vary little. settle is
	// how long Docker may tidy up afterwards, so that it does not slow what comes next.
	dockerRow, settle = 3, 300 * time.Millisecond
)

func (s *service) measureWarm(ctx context.Context) (warm, error) {
	found := warmCommands()
	var ways []way
	for i := range found {
		ways = append(ways, s.warmWays(ctx, &found[i])...)
	}
	err := byTurns(s.settings.warmTurns(), warmUps, ways...)
	return found, err
}

func (s *service) warmWays(ctx context.Context, c *warmCommand) []way {
	floor := func(into *sample, mode string) way {
		return way{into, func() (sample, error) {
			return s.printed(ctx, types.Exec{Argv: append([]string{"/home/floor", mode, strconv.Itoa(rowLength)}, c.argv...)})
		}}
	}
	docker := repeated(dockerRow, &c.docker, func() (time.Duration, error) { return s.timeDockerExec(ctx, 0, c.argv...) })
	return []way{
		repeated(rowLength, &c.rested, func() (time.Duration, error) {
			time.Sleep(rest)
			return s.timeCall(ctx, c.call)
		}),
		repeated(rowLength, &c.atOnce, func() (time.Duration, error) { return s.timeCall(ctx, c.call) }),
		floor(&c.floor, "serial"),
		floor(&c.floorRested, "rested"),
		{docker.into, func() (sample, error) {
			defer time.Sleep(settle)
			return docker.row()
		}},
	}
}

// printed runs a command in the warm sandbox that prints nanoseconds, as the floor program does.
func (s *service) printed(ctx context.Context, e types.Exec) (sample, error) {
	out, err := s.call(ctx, boxID, e)
	if err != nil {
		return nil, err
	}
	text, err := client.Stdout(out)
	if err != nil {
		return nil, err
	}
	return readTimes(text)
}

// warmTarget has the targets for the medians of warm commands under one runtime. 0 means no target.
type warmTarget struct {
	// docker is how many times faster than docker exec `true` must be when calls come at once;
	// floor is how many times the floor it may take then.
	docker, floor float64
	// These hold for calls that come after a rest: how long `true` and a shell's `true` may take,
	// and how long `true` may take relative to the floor, and a shell's `true` and `ls` relative to
	// bash's own start inside.
	program, shell                  time.Duration
	programFloor, shellBash, lsBash float64
}

var warmTargets = map[string]warmTarget{
	"runc":  {docker: 20, floor: 3, program: 2 * time.Millisecond, shell: 1500 * time.Microsecond, lsBash: 1.1},
	"runsc": {docker: 3, floor: 1.6, programFloor: 1.25, shell: 5 * time.Millisecond, shellBash: 0.35, lsBash: 0.7},
}

func warmSection(f findings) section {
	s := section{
		title: "Warm commands",
		how: fmt.Sprintf("Through the API: one POST on a kept connection, until the answer with the exit code is decoded. `true` is a program\n"+
			"(`argv`), a shell's is a command line (`command`). After a rest: the call comes %s ms after the previous answer, as\n"+
			"from a caller who thinks in between. At once: it comes when the previous call has answered. docker exec: create,\n"+
			"attach, read to the end and inspect, through the Engine API on the same container, of the same program or of `bash\n"+
			"-c`. The floor is a program inside this container that starts the same by vfork and exec and waits for it, at once\n"+
			"or after the same rest. The ways take turns in rows of ten, docker exec in rows of %d and then with a pause in which\n"+
			"Docker tidies up.", millis(rest), dockerRow),
		head: timesHead("runtime", "command", "way"),
	}
	for _, r := range f.runtimes {
		commands := r.warm
		if len(commands) == 0 {
			commands = warmCommands()
		}
		for _, c := range commands {
			s.times(c.rested, r.runtime, c.name, "API, after a rest")
			s.times(c.floorRested, r.runtime, c.name, "floor, after a rest")
			s.times(c.atOnce, r.runtime, c.name, "API, at once")
			s.times(c.floor, r.runtime, c.name, "floor, at once")
			s.times(c.docker, r.runtime, c.name, "docker exec")
		}
		if target, judged := warmTargets[r.runtime]; judged {
			s.judge(warmVerdicts(r.runtime, commands, target)...)
		}
	}
	return s
}

func warmVerdicts(runtime string, commands warm, target warmTarget) (list []verdict) {
	program, shell, ls := commands[0], commands[1], commands[2]
	bash := shell.floorRested.median()
	list = append(list,
		atLeast(runtime, "`true`, at once: p50 of docker exec ÷ API", ratio(program.docker.median(), program.atOnce.median()), target.docker, times),
		atMost(runtime, "`true`, at once: p50 of API ÷ floor", ratio(program.atOnce.median(), program.floor.median()), target.floor, times))
	if target.program > 0 {
		list = append(list, atMost(runtime, "`true`, after a rest: p50 of API", program.rested.median(), target.program, ms))
	}
	if target.programFloor > 0 {
		list = append(list, atMost(runtime, "`true`, after a rest: p50 of API ÷ floor", ratio(program.rested.median(), program.floorRested.median()), target.programFloor, times))
	}
	list = append(list, atMost(runtime, "shell `true`, after a rest: p50 of API", shell.rested.median(), target.shell, ms))
	if target.shellBash > 0 {
		list = append(list, atMost(runtime, "shell `true`, after a rest: p50 of API ÷ start of bash inside", ratio(shell.rested.median(), bash), target.shellBash, times))
	}
	return append(list, atMost(runtime, "shell `ls`, after a rest: p50 of API ÷ start of bash inside", ratio(ls.rested.median(), bash), target.lsBash, times))
}
