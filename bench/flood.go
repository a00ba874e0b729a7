package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// flood has the times of a warm exec of `true` while another command of the same container prints
// as fast as it can, and while none does.
type flood struct {
	quiet, api, docker sample
	// rate is what the other command printed meanwhile, in bytes per second.
	rate speeds
}

// floodTurns is how often the flood is turned on and off.
const floodTurns = 4

func (s *service) measureFlood(ctx context.Context) (flood, error) {
	var f flood
	each := max(1, s.settings.flood/floodTurns)
	for range floodTurns {
		for range each {
			if err := f.quiet.add(s.timeExec(ctx)); err != nil {
				return f, err
			}
		}
		stop, err := s.startFlood(ctx)
		if err != nil {
			return f, err
		}
		// In rows, so that what docker exec leaves behind is not counted as the flood's effect.
		for range each {
			if err = f.api.add(s.timeExec(ctx)); err != nil {
				break
			}
		}
		for range each {
			if err == nil {
				err = f.docker.add(s.timeDockerExec(ctx, "true"))
			}
		}
		rate, stopErr := stop()
		if err := errors.Join(err, stopErr); err != nil {
			return f, err
		}
		f.rate = append(f.rate, rate)
	}
	return f, nil
}

// startFlood returns when the flood runs. stop ends it and returns its speed.
func (s *service) startFlood(ctx context.Context) (stop func() (float64, error), err error) {
	ctx, cancel := context.WithCancel(ctx)
	sink := &floodSink{flowing: make(chan struct{})}
	ended := make(chan error, 1)
	timeout := longest
	go func() {
		argv := []string{"dd", "if=/dev/zero", "bs=1M", "status=none"}
		_, err := s.api.Attach(ctx, boxID, types.Exec{Argv: argv, TimeoutMs: &timeout}, client.Streams{Stdout: sink})
		ended <- err
	}()
	select {
	case <-sink.flowing:
	case err := <-ended:
		cancel()
		return nil, fmt.Errorf("the flood has ended before it began: %w", err)
	}
	begun := time.Now()
	return func() (float64, error) {
		rate := float64(sink.n.Load()) / time.Since(begun).Seconds()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return 0, fmt.Errorf("the flood has ended by itself: %w", err)
		}
		return rate, nil
	}, nil
}

// floodSink counts what it drops.
type floodSink struct {
	n       atomic.Int64
	flowing chan struct{} // closed with the first bytes
}

func (f *floodSink) Write(p []byte) (int, error) {
	if f.n.Add(int64(len(p))) == int64(len(p)) {
		close(f.flowing)
	}
	return len(p), nil
}
