package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/daycare-run/sandbox/client"
)

// memory is resident memory at rest, in bytes.
type memory struct {
	daemon, daemonEnd int64
	// agent is the memory of all of the agent's processes inside, and agents how many there are.
	agent  int64
	agents int
}

// quiet is how long nothing happens before memory at rest is measured.
const quiet = 3 * time.Second

// measureRest is called after one exec.
func (s *service) measureRest(ctx context.Context, m *memory) (err error) {
	if m.daemon, err = s.daemonAtRest(ctx); err != nil {
		return err
	}
	m.agent, m.agents, err = s.agentMemory(ctx)
	return err
}

// measureEnd is called after everything else.
func (s *service) measureEnd(ctx context.Context, m *memory) (err error) {
	m.daemonEnd, err = s.daemonAtRest(ctx)
	return err
}

func (s *service) daemonAtRest(ctx context.Context) (int64, error) {
	select {
	case <-time.After(quiet):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return s.daemonMemory("VmRSS")
}

// daemonMemory returns a value of the daemon's /proc status, in bytes.
func (s *service) daemonMemory(name string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.process.Process.Pid))
	if err != nil {
		return 0, err
	}
	return statusBytes(text, name)
}

// agentMemory returns the memory of the agent's processes, as seen inside, and their number.
func (s *service) agentMemory(ctx context.Context) (sum int64, processes int, err error) {
	const script = `for p in /proc/[0-9]*; do [ "$(cat $p/comm)" = agent ] && cat $p/status && echo; done; true`
	out, err := s.exec(ctx, boxID, "sh", "-c", script)
	if err != nil {
		return 0, 0, err
	}
	text, err := client.Stdout(out)
	if err != nil {
		return 0, 0, err
	}
	for status := range bytes.SplitSeq(bytes.TrimSpace(text), []byte("\n\n")) {
		size, err := statusBytes(status, "VmRSS")
		if err != nil {
			return 0, 0, fmt.Errorf("the agent is not in the container's /proc: %w", err)
		}
		sum, processes = sum+size, processes+1
	}
	return sum, processes, nil
}

// statusBytes returns the value of a line such as "VmRSS:  123 kB", in bytes.
func statusBytes(status []byte, name string) (int64, error) {
	for line := range bytes.Lines(status) {
		fields := bytes.Fields(line)
		if len(fields) == 3 && string(fields[0]) == name+":" && string(fields[2]) == "kB" {
			kib, err := strconv.ParseInt(string(fields[1]), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("no %s in a process's status", name)
}

// medianOf returns the median of sizes, or 0 if there are none.
func medianOf(sizes []int64) int64 {
	if len(sizes) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(sizes))[(len(sizes)-1)/2]
}
