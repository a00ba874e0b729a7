package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/daycare-run/sandbox/api/types"
)

// networked has the times of `true` with and without the network.
type networked struct {
	without, with, coldWithout, coldWith sample
	// The floor is measured in the containers of the two warm ways.
	floorWithout, floorWith sample
}

// measureNetwork measures the ways by turns, the warm ones in rows.
func (s *service) measureNetwork(ctx context.Context) (n networked, err error) {
	plain, outward := types.Exec{Argv: []string{"true"}}, outgoing(byName, "true")
	for turn := 0; len(n.without) < s.settings.warm; turn++ {
		into := &n
		if turn < warmUps {
			into = &networked{}
		}
		ways := []func() error{
			func() error { return s.warmRow(ctx, plain, &into.without, &into.floorWithout) },
			func() error { return s.warmRow(ctx, outward, &into.with, &into.floorWith) },
		}
		for i := range ways {
			if err := ways[(turn+i)%len(ways)](); err != nil {
				return n, err
			}
		}
	}
	users := 0
	user := func() types.Registration {
		users++
		return travelling(fmt.Sprintf("new-%d", users))
	}
	cold := []func(*networked) error{
		func(n *networked) error { return n.coldWithout.add(s.timeCold(ctx, user(), plain)) },
		func(n *networked) error { return n.coldWith.add(s.timeCold(ctx, user(), outward)) },
	}
	for turn := range s.settings.cold + 1 {
		into := &n
		if turn == 0 {
			into = &networked{} // warms up
		}
		for i := range cold {
			if err := cold[(turn+i)%len(cold)](into); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// warmRow measures a row of calls, and the floor of their container.
func (s *service) warmRow(ctx context.Context, e types.Exec, calls, floor *sample) error {
	for range rowLength {
		if err := calls.add(s.timeCall(ctx, e)); err != nil {
			return err
		}
	}
	e.Argv = []string{"/home/floor", "serial", strconv.Itoa(rowLength)}
	row, err := s.callFloor(ctx, e)
	*floor = append(*floor, row...)
	return err
}
