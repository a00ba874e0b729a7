package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// networked has the times of `true` with and without the network.
type networked struct {
	without, with, coldWithout, coldWith sample
	// The floor is measured in the containers of the two warm ways.
	floorWithout, floorWith sample
}

// warmNetworkTarget is how long a warm call with a network may take, relative to one without.
const warmNetworkTarget = 1.05

// coldNetworkTarget is how long a first call with a network may take, relative to one without.
const coldNetworkTarget = 1.2

func (s *service) measureNetwork(ctx context.Context) (found networked, err error) {
	plain, outward := types.Exec{Argv: []string{"true"}}, outgoing(byName, "true")
	warm := func(into *sample, e types.Exec) way {
		return repeated(rowLength, into, func() (time.Duration, error) { return s.timeCall(ctx, e) })
	}
	floor := func(into *sample, e types.Exec) way {
		e.Argv = []string{"/home/floor", "serial", strconv.Itoa(rowLength)}
		return way{into, func() (sample, error) { return s.printed(ctx, e) }}
	}
	users := 0
	cold := func(into *sample, e types.Exec) way {
		return once(into, func() (time.Duration, error) {
			users++
			return s.timeCold(ctx, travelling(fmt.Sprint("new-", users)), e)
		})
	}
	err = byTurns(s.settings.warmTurns(), warmUps,
		warm(&found.without, plain), floor(&found.floorWithout, plain),
		warm(&found.with, outward), floor(&found.floorWith, outward))
	if err != nil {
		return found, err
	}
	err = byTurns(s.settings.cold, 1, cold(&found.coldWithout, plain), cold(&found.coldWith, outward))
	return found, err
}

func networkSection(f findings) section {
	s := section{
		title: "Calls that may use the network",
		how: "An exec of `true` through the API, by users who may use the network: calls without the grant `@network`, and calls\n" +
			"with it and one name. Warm ones take turns in rows of ten, each grant in a container of its own, in which the floor\n" +
			"program is measured as well. Cold ones are the first of a user who has never been seen. With the grant they include an\n" +
			"interface, by the runtime or by Docker, and the service's work for its address and names.",
		head: timesHead("runtime", "exec"),
	}
	for _, r := range f.runtimes {
		n := r.network
		s.times(n.without, r.runtime, "warm, without")
		s.times(n.with, r.runtime, "warm, `@network`")
		s.times(n.floorWithout, r.runtime, "floor, without")
		s.times(n.floorWith, r.runtime, "floor, `@network`")
		s.times(n.coldWithout, r.runtime, "cold, without")
		s.times(n.coldWith, r.runtime, "cold, `@network`")
		s.judge(atMost(r.runtime, "p50 of warm, `@network` ÷ without", ratio(n.with.median(), n.without.median()), warmNetworkTarget, times),
			atMost(r.runtime, "p50 of cold, `@network` ÷ without", ratio(n.coldWith.median(), n.coldWithout.median()), coldNetworkTarget, times))
	}
	return s
}
