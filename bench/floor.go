package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// floorParallel measures n simultaneous starts.
func (s *service) floorParallel(ctx context.Context, n int) (time.Duration, error) {
	times, err := s.runFloor(ctx, "/home/floor", "parallel", strconv.Itoa(n))
	if err != nil || len(times) != 1 {
		return 0, fmt.Errorf("the floor program printed %d times: %w", len(times), err)
	}
	return times[0], nil
}

// runFloor runs a command in the sandbox that prints nanoseconds.
func (s *service) runFloor(ctx context.Context, argv ...string) (sample, error) {
	return s.callFloor(ctx, types.Exec{Argv: argv})
}

func (s *service) callFloor(ctx context.Context, e types.Exec) (sample, error) {
	out, err := s.call(ctx, boxID, e)
	if err != nil {
		return nil, err
	}
	text, err := client.Stdout(out)
	if err != nil {
		return nil, err
	}
	var times sample
	for _, field := range bytes.Fields(text) {
		ns, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s printed %q", e.Argv[0], field)
		}
		times = append(times, time.Duration(ns))
	}
	return times, nil
}
