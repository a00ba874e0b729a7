package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/daycare-run/sandbox/api/types"
)

// adoption has the times that a killed service takes to find its processes again.
type adoption struct {
	asked, processes int
	// answers is the time from the start of sandboxd until it lists processes, adopted until it has
	// looked at them; stop is the time to end one of them afterwards.
	answers, adopted, stop sample
}

const (
	adoptUser = "adopt"
	// adoptLimit bounds the wait for adoption, and adoptPoll is the time between two looks.
	adoptLimit, adoptPoll = time.Minute, 5 * time.Millisecond
	// processMemory must be available for each process.
	processMemory = int64(120 << 20)
	// removals is how many containers are removed at a time.
	removals     = 8
	labelProcess = "run.daycare.sandbox.process"
)

// sleeping is a process that uses nothing.
var sleeping = types.StartProcess{Argv: []string{"sleep", "86400"}}

// affordable returns how many processes fit into the available memory.
func affordable(asked int, available int64) int {
	return int(min(int64(asked), available/processMemory))
}

// measureAdoption leaves the records of its processes behind; their containers are removed.
func (s *service) measureAdoption(ctx context.Context) (found adoption, err error) {
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return found, err
	}
	available, err := statusBytes(meminfo, "MemAvailable")
	if err != nil {
		return found, err
	}
	found.asked = s.settings.processes
	if s.runtime != adoptRuntime { // the other runtimes have no target, and each process needs a container
		found.asked = min(found.asked, 10)
	}
	found.processes = affordable(found.asked, available)
	if found.processes < 1 {
		return found, fmt.Errorf("%s of memory are available, too few for a process", mib(available))
	}
	if found.processes < found.asked {
		s.say("%s: little memory is available, so there are %d processes only", s.runtime, found.processes)
	}
	if err := s.register(ctx, adoptUser); err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, s.removeProcesses()) }()
	before := map[string]types.Process{}
	for range found.processes {
		p, err := s.api.StartProcess(ctx, adoptUser, sleeping)
		if err != nil {
			return found, err
		}
		before[p.ID] = p.Process
	}
	for range s.settings.streams {
		if err := s.timeAdoption(ctx, before, &found); err != nil {
			return found, err
		}
	}
	for id := range before {
		begun := time.Now()
		_, err := s.api.StopProcess(ctx, adoptUser, id, "")
		if err := found.stop.add(time.Since(begun), err); err != nil {
			return found, fmt.Errorf("an adopted process cannot be stopped: %w", err)
		}
		if len(found.stop) == s.settings.streams {
			break
		}
	}
	return found, nil
}

// timeAdoption kills the service and starts it again. One more process ends meanwhile. The records
// do not show that, so a service that lists it as ended has looked at the containers.
func (s *service) timeAdoption(ctx context.Context, before map[string]types.Process, found *adoption) error {
	probe, err := s.api.StartProcess(ctx, adoptUser, sleeping)
	if err != nil {
		return err
	}
	if err := s.halt(syscall.SIGKILL); err != nil {
		return err
	}
	name := "daycare-process-" + probe.ID
	ended, failed := s.docker.ContainerWait(ctx, name, container.WaitConditionNotRunning)
	if err := s.docker.ContainerKill(ctx, name, "KILL"); err != nil {
		return fmt.Errorf("cannot end a process: %w", err)
	}
	select {
	case <-ended:
	case err := <-failed:
		return fmt.Errorf("cannot wait for a process: %w", err)
	}
	begun := time.Now()
	if err := s.resume(); err != nil {
		return err
	}
	answered := false
	for {
		list, err := s.api.Processes(ctx, adoptUser)
		took := time.Since(begun)
		if err == nil && !answered {
			answered = true
			found.answers = append(found.answers, took)
		}
		if err == nil {
			if err = adopted(list, before, probe.ID); err == nil {
				found.adopted = append(found.adopted, took)
				return s.api.RemoveProcess(ctx, adoptUser, probe.ID)
			}
		}
		select {
		case <-s.ended:
			return errors.New("sandboxd has ended")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(adoptPoll):
		}
		if took > adoptLimit {
			return fmt.Errorf("not all processes are adopted: %w", err)
		}
	}
}

// adopted returns an error until all processes are listed as they were and the probe is listed as
// ended.
func adopted(list []types.Process, before map[string]types.Process, probe string) error {
	same, ended := 0, false
	for _, p := range list {
		if p.ID == probe {
			ended = p.Status == types.ProcessExited
			continue
		}
		was, ok := before[p.ID]
		if ok && p.Status == types.ProcessRunning && p.RestartCount == 0 && p.PID != nil && was.PID != nil &&
			*p.PID == *was.PID && p.LastStartedAt.Equal(was.LastStartedAt) {
			same++
		}
	}
	if same < len(before) || !ended {
		return fmt.Errorf("%d of %d processes run as before; the end of another one is known: %t", same, len(before), ended)
	}
	return nil
}

// removeProcesses removes all processes' containers, whether or not the service is up.
func (s *service) removeProcesses() error {
	ctx, cancel := context.WithTimeout(context.Background(), removalLimit)
	defer cancel()
	list, err := s.docker.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(
		filters.Arg("label", labelInstance+"="+s.instance), filters.Arg("label", labelProcess))})
	if err != nil {
		return fmt.Errorf("cannot list the containers of processes: %w", err)
	}
	slots := make(chan struct{}, removals)
	var work sync.WaitGroup
	for _, c := range list {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			// What is left, the service's end removes or reports.
			_ = s.docker.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true, RemoveVolumes: true})
		})
	}
	work.Wait()
	return nil
}
