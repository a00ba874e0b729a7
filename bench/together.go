package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// together has the times of many simultaneous execs of `true`, until the last has ended.
type together struct {
	api, docker, floor sample
	// failures counts execs through the API that failed, of all rounds; first is the first one's
	// error.
	failures int
	first    error
}

// atOnce is how many execs run at once.
const atOnce = 64

func (s *service) measureTogether(ctx context.Context) (together, error) {
	var t together
	// The first round opens the connections. Only its failures count.
	for round := range s.settings.rounds + 1 {
		took, faults := s.allAtOnce(func() error { _, err := s.exec(ctx, boxID, "true"); return err })
		if err := ctx.Err(); err != nil {
			return t, err
		}
		t.failures += len(faults)
		if len(faults) > 0 && t.first == nil {
			t.first = faults[0]
		}
		floor, err := s.floorParallel(ctx, atOnce)
		if err != nil {
			return t, err
		}
		if round == 0 {
			continue
		}
		t.api, t.floor = append(t.api, took), append(t.floor, floor)
	}
	if t.failures > 0 {
		s.say("%s: %d execs FAILED, the first with: %v", s.runtime, t.failures, t.first)
	}
	// Last, because Docker needs some time to tidy up afterwards, and fewer, because docker exec is
	// slow.
	for range max(1, s.settings.rounds/4) {
		took, faults := s.allAtOnce(func() error { _, err := s.dockerExec(ctx, "true"); return err })
		if len(faults) > 0 {
			return t, fmt.Errorf("%d of %d failed, the first with: %w", len(faults), atOnce, faults[0])
		}
		t.docker = append(t.docker, took)
	}
	return t, nil
}

// allAtOnce returns the time until all have ended, and the errors of the failed ones.
func (s *service) allAtOnce(one func() error) (time.Duration, []error) {
	var (
		work   sync.WaitGroup
		mu     sync.Mutex
		faults []error
	)
	begun := time.Now()
	for range atOnce {
		work.Go(func() {
			if err := one(); err != nil {
				mu.Lock()
				faults = append(faults, err)
				mu.Unlock()
			}
		})
	}
	work.Wait()
	return time.Since(begun), faults
}
