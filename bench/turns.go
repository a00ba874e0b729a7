package main

import (
	"context"
	"time"
)

const (
	// warmUps is how many turns precede the first that counts.
	warmUps = 2
	// rowLength is how many calls of one way come in a row before the next way takes its turn.
	rowLength = 10
)

// way is one of several ways to do the same. They are measured by turns, so that a machine that is
// slower for a while is slower for all of them.
type way struct {
	into *sample
	// row measures the way's part of a turn.
	row func() (sample, error)
}

// repeated is a way of which n calls come in a row.
func repeated(n int, into *sample, call func() (time.Duration, error)) way {
	return way{into, func() (row sample, err error) {
		for range n {
			if err := row.add(call()); err != nil {
				return nil, err
			}
		}
		return row, nil
	}}
}

// once is a way of which one call comes in each turn.
func once(into *sample, call func() (time.Duration, error)) way { return repeated(1, into, call) }

// byTurns measures ways for so many turns, after some that do not count. Each turn begins with
// another way.
func byTurns(turns, warmUps int, ways ...way) error {
	for turn := range warmUps + turns {
		for i := range ways {
			way := ways[(turn+i)%len(ways)]
			row, err := way.row()
			if err != nil {
				return err
			}
			if turn >= warmUps {
				*way.into = append(*way.into, row...)
			}
		}
	}
	return nil
}

// timed returns how long something took.
func timed(do func() error) (time.Duration, error) {
	begun := time.Now()
	err := do()
	return time.Since(begun), err
}

// pause waits, unless the context ends before.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
