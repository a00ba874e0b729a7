package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"golang.org/x/sys/unix"

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

// restWindow is how long processor time is counted.
const restWindow = 2 * time.Second

// aloneSettings returns the settings for containers without a waiting shell.
func aloneSettings() ([]string, error) { return []string{"SANDBOXD_EXEC_AHEAD=0"}, nil }

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
		created, err := s.docker.ContainerCreate(context.WithoutCancel(ctx), &t.config, &t.host, nil, nil, "")
		if err != nil {
			return err
		}
		if err := s.docker.ContainerStart(ctx, created.ID, container.StartOptions{}); err != nil {
			return err
		}
		ids = append(ids, created.ID)
	}
	return s.watchResting(ctx, ids, &found.bare)
}

// watchResting looks at containers on the host, some time after the last command.
func (s *service) watchResting(ctx context.Context, ids []string, found *atRest) error {
	if len(ids) == 0 {
		return fmt.Errorf("there are no containers to look at")
	}
	select {
	case <-time.After(quiet):
	case <-ctx.Done():
		return ctx.Err()
	}
	before, err := busyOf(ids)
	if err != nil {
		return err
	}
	begun := time.Now()
	select {
	case <-time.After(restWindow):
	case <-ctx.Done():
		return ctx.Err()
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
			had, err := threadTime(pid)
			if err != nil {
				return nil, err
			}
			sum += had
		}
		busy = append(busy, sum)
	}
	return busy, nil
}

// proportional returns the proportional set size of a container's processes on the host, in bytes.
func proportional(id string) (sum int64, _ error) {
	pids, err := hostProcesses(id)
	if err != nil {
		return 0, err
	}
	spaces, err := addressSpaces(pids)
	if err != nil {
		return 0, err
	}
	for _, pid := range spaces {
		rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		size, err := statusBytes(rollup, "Pss")
		if err != nil {
			return 0, err
		}
		sum += size
	}
	return sum, nil
}

// addressSpaces leaves out processes that share the memory of an earlier one, as gVisor's processes
// for the threads of one program do. The kernel reports the whole memory for each of them.
func addressSpaces(pids []int) (owners []int, _ error) {
	const memory = 1 // KCMP_VM, kcmp(2)
next:
	for _, pid := range pids {
		for _, owner := range owners {
			order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(owner), memory, 0, 0, 0)
			if errno != 0 {
				return nil, os.NewSyscallError("kcmp", errno)
			}
			if order == 0 {
				continue next
			}
		}
		owners = append(owners, pid)
	}
	return owners, nil
}

// hostProcesses returns a container's processes on the host: under gVisor, its kernel and its file
// server.
func hostProcesses(id string) (pids []int, _ error) {
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, err
	}
	for _, name := range groups {
		text, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(text), id) {
			continue // it has ended, or belongs to another container
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("container %.12s has no processes", id)
	}
	return pids, nil
}
