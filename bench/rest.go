package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/daycare-run/sandbox/api/types"
)

// resting has the memory and processor time of containers in which nothing runs.
type resting struct {
	// waiting have the agent and the next command's shell, alone have only the agent, and bare have
	// a program that sleeps instead of it.
	waiting, alone, bare atRest
}

// atRest has the values of several containers.
type atRest struct {
	memory []int64 // bytes, by proportional set size
	busy   sample  // processor time in a second
}

const (
	// restWindow is how long processor time is counted.
	restWindow = 2 * time.Second
	// agentTarget and shellTarget are how much memory an agent without commands, and a shell that
	// waits for the next one, may have; shellBusyTarget is the processor time that such a shell may
	// take in a second.
	agentTarget, shellTarget = int64(12 << 20), int64(3 << 20)
	shellBusyTarget          = 100 * time.Microsecond
)

// aloneSettings are the settings for containers without a waiting shell.
var aloneSettings = []string{"SANDBOXD_EXEC_AHEAD=0"}

// measureResting measures containers of the service after some commands.
func (s *service) measureResting(ctx context.Context, found *atRest) error {
	for i := range s.settings.rests {
		user := fmt.Sprint("rest-", i)
		if err := s.register(ctx, user); err != nil {
			return err
		}
		for range rowLength {
			if _, err := s.call(ctx, user, types.Exec{Command: "true"}); err != nil {
				return err
			}
		}
	}
	containers, err := s.api.Containers(ctx)
	if err != nil {
		return err
	}
	var ids []string
	for _, c := range containers {
		if strings.HasPrefix(c.UserID, "rest-") {
			ids = append(ids, c.ID)
		}
	}
	return s.watchResting(ctx, ids, found)
}

// measureAgentAlone measures containers without waiting shells, and then as many in which a program
// sleeps.
func (s *service) measureAgentAlone(ctx context.Context, found *resting) error {
	if err := s.measureResting(ctx, &found.alone); err != nil {
		return err
	}
	t, err := s.twin(ctx, "sleep", "86400")
	if err != nil {
		return err
	}
	var ids []string
	for range s.settings.rests {
		id, err := s.create(ctx, t)
		if err != nil {
			return err
		}
		if err := s.docker.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
			return err
		}
		ids = append(ids, id)
	}
	return s.watchResting(ctx, ids, &found.bare)
}

// watchResting looks at containers on the host, some time after the last command.
func (s *service) watchResting(ctx context.Context, ids []string, found *atRest) error {
	if len(ids) == 0 {
		return errors.New("there are no containers to look at")
	}
	if err := pause(ctx, quiet); err != nil {
		return err
	}
	before, err := busyOf(ids)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := pause(ctx, restWindow); err != nil {
		return err
	}
	after, err := busyOf(ids)
	if err != nil {
		return err
	}
	for i, id := range ids {
		found.busy = append(found.busy, time.Duration(float64(after[i]-before[i])/time.Since(begun).Seconds()))
		memory, err := proportional(id)
		if err != nil {
			return err
		}
		found.memory = append(found.memory, memory)
	}
	return nil
}

// busyOf returns the processor time that each container has used so far.
func busyOf(ids []string) (busy []time.Duration, err error) {
	for _, id := range ids {
		pids, err := hostProcesses(id)
		if err != nil {
			return nil, err
		}
		var sum time.Duration
		for _, pid := range pids {
			had, err := processorTime(pid)
			if err != nil {
				return nil, err
			}
			sum += had
		}
		busy = append(busy, sum)
	}
	return busy, nil
}

func restSection(f findings) section {
	s := section{
		title: "Containers at rest",
		how: fmt.Sprintf("%d containers each, %g s after ten commands: with the defaults, where the next command's shell waits; with\n"+
			"`exec.ahead` 0; and with a program that sleeps in the agent's place. Memory is the proportional set size (PSS) of\n"+
			"all of a container's processes on the host. Under gVisor these are its kernel's and its file server's; those that\n"+
			"share an address space count as one. Processor time is theirs in a second, over %g s. Medians.",
			f.settings.rests, quiet.Seconds(), restWindow.Seconds()),
		head: []string{"runtime", "inside", "memory", "processor, ms a second"},
	}
	for _, r := range f.runtimes {
		x := r.resting
		for _, one := range []struct {
			name string
			atRest
		}{{"the agent and a shell that waits", x.waiting}, {"the agent", x.alone}, {"`sleep`", x.bare}} {
			s.row(r.runtime, one.name, mib(medianOf(one.memory)), millis(one.busy.median()))
		}
		alone := medianOf(x.alone.memory)
		shell := max(0, medianOf(x.waiting.memory)-alone) // 0: no shell waits
		var busy time.Duration
		if shell > 0 { // and may take less than can be measured
			busy = max(1, x.waiting.busy.median()-x.alone.busy.median())
		}
		s.judge(
			atMost(r.runtime, "the agent's memory", alone-medianOf(x.bare.memory), agentTarget, mib),
			atMost(r.runtime, "memory of a shell that waits", shell, shellTarget, mib),
			atMost(r.runtime, "processor time of a shell that waits, in a second", busy, shellBusyTarget, ms))
	}
	return s
}
