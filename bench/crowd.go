package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// crowd is what one user costs among few real containers and among many, and what these cost while
// nothing happens.
type crowd struct {
	among []int
	calls []crowdCalls
	// idle is what runs while no call does, and frozen the same of crowdFrozen frozen containers.
	idle, frozen crowdCost
}

// crowdCalls are a new user's first call, another user's next call, and a registration.
type crowdCalls struct{ first, next, register sample }

// crowdCost is processor time in a minute.
type crowdCost struct {
	containers                     int
	service, engine, shims, inside time.Duration
}

const (
	// crowdSamples is how many of each call are made.
	crowdSamples = 20
	// crowdFrozen is how many containers are frozen.
	crowdFrozen = 100
)

// crowdSettings keep many containers, and frozenCrowdSettings freeze them soon.
var (
	crowdSettings       = []string{"SANDBOXD_POOL_SIZE=0", "SANDBOXD_IDLE_MAX_CONTAINERS=2000", "SANDBOXD_IDLE_MIN_FREE_MEMORY=0"}
	frozenCrowdSettings = append(crowdSettings[:len(crowdSettings):len(crowdSettings)], "SANDBOXD_IDLE_FREEZE_AFTER=5s")
)

// crowdSizes are the numbers of containers among which calls are made. Under gVisor one takes more
// memory.
func (s *service) crowdSizes() []int {
	switch {
	case s.settings.quick:
		return []int{5, 20}
	case s.runtime == "runc":
		return []int{10, 1000}
	}
	return []int{10, 300}
}

// measureCrowd makes containers until there are many.
func (s *service) measureCrowd(ctx context.Context, c *crowd) error {
	c.among = s.crowdSizes()
	there := 0
	for _, size := range c.among {
		for ; there < size; there++ {
			if there%50 == 0 {
				s.say("%s: %d of %d containers", s.runtime, there, size)
			}
			if _, err := s.newUser(ctx, fmt.Sprint("crowd-", there), "true"); err != nil {
				return err
			}
		}
		calls, err := s.callInCrowd(ctx, size)
		if err != nil {
			return err
		}
		c.calls = append(c.calls, calls)
		there += crowdSamples // these are there, too
	}
	if err := s.watchCrowd(ctx, &c.idle); err != nil {
		return err
	}
	return s.dropUsers(ctx)
}

func (s *service) callInCrowd(ctx context.Context, size int) (c crowdCalls, err error) {
	for i := range crowdSamples {
		user := fmt.Sprintf("crowd-%d-%d", size, i)
		registers, err := timed(func() error { return s.register(ctx, user) })
		if err != nil {
			return c, err
		}
		for _, into := range []*sample{&c.first, &c.next} {
			took, err := timed(func() error { _, err := s.exec(ctx, user, "true"); return err })
			if err != nil {
				return c, err
			}
			*into = append(*into, took)
		}
		c.register = append(c.register, registers)
	}
	return c, nil
}

// measureFrozenCrowd needs a service that freezes idle containers.
func (s *service) measureFrozenCrowd(ctx context.Context, c *crowd) error {
	n := crowdFrozen
	if s.settings.quick {
		n /= 10
	}
	for i := range n {
		if _, err := s.newUser(ctx, fmt.Sprint("cold-", i), "true"); err != nil {
			return err
		}
	}
	if err := s.awaitFrozen(ctx, n); err != nil {
		return err
	}
	if err := s.watchCrowd(ctx, &c.frozen); err != nil {
		return err
	}
	return s.dropUsers(ctx)
}

// watchCrowd counts processor time while nothing happens.
func (s *service) watchCrowd(ctx context.Context, c *crowdCost) error {
	window := time.Minute
	if s.settings.quick {
		window /= 6
	}
	list, err := s.api.Containers(ctx)
	if err != nil {
		return err
	}
	c.containers = len(list)
	ids := map[string]bool{}
	for _, one := range list {
		ids[one.ID] = true
	}
	if err := pause(ctx, quiet); err != nil {
		return err
	}
	before, err := s.crowdCost(ids)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := pause(ctx, window); err != nil {
		return err
	}
	after, err := s.crowdCost(ids)
	if err != nil {
		return err
	}
	minute := float64(time.Minute) / float64(time.Since(begun))
	for _, one := range []struct {
		into          *time.Duration
		before, after time.Duration
	}{
		{&c.service, before.service, after.service}, {&c.engine, before.engine, after.engine},
		{&c.shims, before.shims, after.shims}, {&c.inside, before.inside, after.inside},
	} {
		*one.into = time.Duration(float64(one.after-one.before) * minute)
	}
	return nil
}

// crowdCost returns the processor time that has been used so far.
func (s *service) crowdCost(ids map[string]bool) (c crowdCost, err error) {
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return c, err
	}
	for _, name := range names {
		dir := filepath.Dir(name)
		line, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		groups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			return c, err
		}
		var into *time.Duration
		words := bytes.Split(line, []byte{0})
		program := filepath.Base(string(words[0]))
		switch {
		case pid == s.process.Process.Pid:
			into = &c.service
		case hasContainer(ids, groups):
			into = &c.inside
		case program == "containerd-shim-runc-v2" && hasContainer(ids, line):
			into = &c.shims
		case program == "dockerd" || program == "containerd":
			into = &c.engine
		default:
			continue
		}
		if had, err := processorTime(pid); err == nil {
			*into += had
		}
	}
	return c, nil
}

// hasContainer reports whether a text names a container: a word of 64 hexadecimal digits.
func hasContainer(ids map[string]bool, text []byte) bool {
	const digits = 64
	for run, i := 0, 0; i < len(text); i++ {
		if b := text[i]; b < '0' || b > '9' && b < 'a' || b > 'f' {
			run = 0
		} else if run++; run >= digits && ids[string(text[i+1-digits:i+1])] {
			return true
		}
	}
	return false
}

func crowdSection(f findings) section {
	s := section{
		title: "Among many real containers",
		how: fmt.Sprintf("A new user's first `true`, the same user's next one and a registration, %d of each, among few and among many\n"+
			"containers of others that are idle. Medians. Below, the processor time that all of them take in a minute while nothing\n"+
			"happens: sandboxd's, that of dockerd and containerd, of the shims, and of what is inside.", crowdSamples),
		head: []string{"runtime", "containers", "first call, ms", "next call, ms", "registration, ms", "sandboxd, ms a minute", "engine", "shims", "inside"},
	}
	for _, r := range f.runtimes {
		c := r.crowd
		for i, calls := range c.calls {
			s.row(r.runtime, fmt.Sprint(c.among[i], " idle"), millis(calls.first.median()), millis(calls.next.median()), millis(calls.register.median()), "", "", "", "")
		}
		for _, cost := range []struct {
			name string
			crowdCost
		}{{"idle", c.idle}, {"frozen", c.frozen}} {
			s.row(r.runtime, fmt.Sprint(cost.containers, " ", cost.name), "", "", "", millis(cost.service), millis(cost.engine), millis(cost.shims), millis(cost.inside))
		}
		if last := len(c.calls) - 1; last > 0 {
			few, many := c.calls[0], c.calls[last]
			s.judge(
				atMost(r.runtime, "a first call, many ÷ few", ratio(many.first.median(), few.first.median()), scaleTarget, times),
				atMost(r.runtime, "a call, many ÷ few", ratio(many.next.median(), few.next.median()), scaleTarget, times),
				atMost(r.runtime, "a registration, many ÷ few", ratio(many.register.median(), few.register.median()), scaleTarget, times))
		}
	}
	return s
}
