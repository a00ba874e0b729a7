package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// together has the times of many simultaneous execs of `true`, until the last has ended.
type together struct {
	api, docker, floor sample
	// failures counts the execs through the API that failed, of all rounds.
	failures int
}

const (
	// atOnce is how many execs run at once.
	atOnce = 64
	// togetherTarget is how long they may take, relative to the floor.
	togetherTarget = 1.3
)

func (s *service) measureTogether(ctx context.Context) (found together, err error) {
	err = byTurns(s.settings.rounds, 1, // the first round opens the connections
		once(&found.api, func() (time.Duration, error) {
			took, faults := allAtOnce(func() error { _, err := s.exec(ctx, boxID, "true"); return err })
			if len(faults) > 0 {
				s.say("%s: %d execs FAILED, the first with: %v", s.runtime, len(faults), faults[0])
			}
			found.failures += len(faults)
			return took, ctx.Err()
		}),
		way{&found.floor, func() (sample, error) {
			return s.printed(ctx, types.Exec{Argv: []string{"/home/floor", "parallel", strconv.Itoa(atOnce)}})
		}})
	if err != nil {
		return found, err
	}
	// Last, because Docker needs some time to tidy up afterwards, and fewer, because docker exec is
	// slow.
	err = byTurns(max(1, s.settings.rounds/4), 0, once(&found.docker, func() (time.Duration, error) {
		took, faults := allAtOnce(func() error { _, err := s.timeDockerExec(ctx, 0, "true"); return err })
		return took, errors.Join(faults...)
	}))
	return found, err
}

// allAtOnce returns the time until all have ended, and the errors of the failed ones.
func allAtOnce(one func() error) (took time.Duration, faults []error) {
	var (
		work sync.WaitGroup
		mu   sync.Mutex
	)
	begun := time.Now()
	for range atOnce {
		work.Go(func() {
			if err := one(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				faults = append(faults, err)
			}
		})
	}
	work.Wait()
	return time.Since(begun), faults
}

func togetherSection(f findings) section {
	s := section{
		title: fmt.Sprintf("%d execs of `true` at once in one container", atOnce),
		how: "The time until the last one has ended. The floor is the floor program with as many threads, each of which starts\n" +
			"one; it is timed inside. API and floor take turns; fewer rounds of docker exec follow. Failures are those of all\n" +
			"rounds through the API, including the one that opens the connections.",
		head: timesHead("runtime", "way"),
	}
	for _, r := range f.runtimes {
		x := r.together
		s.times(x.api, r.runtime, "API")
		s.times(x.docker, r.runtime, "docker exec")
		s.times(x.floor, r.runtime, "floor")
		s.judge(
			zero(r.runtime, "failures", x.failures),
			atMost(r.runtime, "p50 of API ÷ floor", ratio(x.api.median(), x.floor.median()), togetherTarget, times))
	}
	return s
}
