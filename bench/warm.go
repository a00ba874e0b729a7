package main

import (
	"context"
	"strconv"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// warm has the times of short commands in an existing container, in the order of warmCommands.
type warm []warmCommand

// warmCommand is one command, measured each way.
type warmCommand struct {
	name string
	call types.Exec
	// argv is the same command for docker exec and the floor program; if it is empty, neither runs
	// it.
	argv []string
	// atOnce are calls through the API that come when the previous one has answered, next are calls
	// that come when the next command's shell has started, and rested are calls that come some time
	// later.
	atOnce, next, rested, docker sample
	// floor are starts inside at once, and floorRested starts after a rest.
	floor, floorRested sample
}

// The order of warmCommands.
const (
	programTrue = iota
	shellTrue
	shellLs
	bashTrue
)

func warmCommands() warm {
	return warm{
		{name: "`true`", call: types.Exec{Argv: []string{"true"}}, argv: []string{"true"}},
		{name: "shell `true`", call: types.Exec{Command: "true"}, argv: []string{"bash", "-c", "true"}},
		{name: "shell `ls`", call: types.Exec{Command: "ls"}, argv: []string{"bash", "-c", "ls"}},
		{name: "`bash -c true` as a program", call: types.Exec{Argv: []string{"bash", "-c", "true"}}},
	}
}

const (
	// warmUps is how many rows precede the first that counts.
	warmUps = 2
	// rowLength is how many calls of one way come in a row before the next way takes its turn.
	rowLength = 10
	// rest is the time between an answer and the next call, as of a caller who thinks in between.
	rest = 70 * time.Millisecond
	// settle is how long Docker may tidy up after a row of docker execs, so that this neither
	// favours docker exec nor slows what comes next.
	settle = 300 * time.Millisecond
	// dockerEvery says that docker exec runs in every third turn: it is slow, and varies little.
	dockerEvery = 3
)

// shellStarts is, by runtime, how soon after an answer a call finds the next command's shell
// started.
var shellStarts = map[string]time.Duration{"runc": 8 * time.Millisecond, "runsc": 16 * time.Millisecond}

// measureWarm takes turns, so that any drift of the machine affects all ways alike.
func (s *service) measureWarm(ctx context.Context) (warm, error) {
	discarded, found := warmCommands(), warmCommands()
	for turn := -warmUps; len(found[0].atOnce) < s.settings.warm; turn++ {
		into := found
		if turn < 0 {
			into = discarded
		}
		for i := range into {
			if err := s.warmTurn(ctx, &into[i], turn%dockerEvery == 0); err != nil {
				return found, err
			}
		}
	}
	return found, nil
}

// warmTurn measures one row of a command each way.
func (s *service) warmTurn(ctx context.Context, c *warmCommand, docker bool) error {
	for _, way := range []struct {
		into  *sample
		pause time.Duration
	}{{&c.rested, rest}, {&c.next, shellStarts[s.runtime]}, {&c.atOnce, 0}} {
		for range rowLength {
			time.Sleep(way.pause)
			if err := way.into.add(s.timeCall(ctx, c.call)); err != nil {
				return err
			}
		}
	}
	if len(c.argv) == 0 {
		return nil
	}
	for _, way := range []struct {
		into *sample
		mode string
	}{{&c.floor, "serial"}, {&c.floorRested, "rested"}} {
		row, err := s.runFloor(ctx, append([]string{"/home/floor", way.mode, strconv.Itoa(rowLength)}, c.argv...)...)
		if err != nil {
			return err
		}
		*way.into = append(*way.into, row...)
	}
	if !docker {
		return nil
	}
	defer time.Sleep(settle)
	for range rowLength {
		if err := c.docker.add(s.timeDockerExec(ctx, c.argv...)); err != nil {
			return err
		}
	}
	return nil
}

// ready returns how long after a command's end the next command's shell is ready: how much longer a
// call at once takes than one after a rest. It returns false if no shell has started before its
// command, so that both take as long as bash started as a program.
func (w warm) ready() (sample, bool) {
	if len(w) == 0 {
		return nil, false
	}
	one := w[shellTrue]
	begun := one.floor.median() - w[programTrue].floor.median() // bash's own part of its start
	if w[bashTrue].rested.median()-one.rested.median() < begun/2 {
		return nil, false
	}
	var ready sample
	for _, took := range one.atOnce {
		ready = append(ready, max(0, took-one.rested.median()))
	}
	return ready, true
}

// timeCall times a call that finds its container.
func (s *service) timeCall(ctx context.Context, e types.Exec) (time.Duration, error) {
	begun := time.Now()
	_, err := s.call(ctx, boxID, e)
	return time.Since(begun), err
}

func (s *service) timeDockerExec(ctx context.Context, argv ...string) (time.Duration, error) {
	begun := time.Now()
	_, err := s.dockerExec(ctx, argv...)
	return time.Since(begun), err
}
