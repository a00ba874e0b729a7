package decisions_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// TestEverythingAtOnce has many goroutines add while others read, and holds the counts against what
// was added. In the bubble a goroutine that is left behind is an error.
func TestEverythingAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const adders, each, repeats = 8, 5000, 50
		log := decisions.New(adders * repeats)
		follower := follow(t, log, decisions.Filter{Container: "c-1"})
		tally := log.Tally("c-2")

		ctx, cancel := context.WithCancel(t.Context())
		var readers sync.WaitGroup
		for range 2 {
			readers.Go(func() { read(ctx, t, log) })
		}
		var told, lost uint64
		readers.Go(func() { told, lost = drain(t, follower, adders*each) })

		var writers sync.WaitGroup
		for a := range adders {
			writers.Go(func() {
				for i := range each {
					log.Add(denied(strconv.Itoa(a%3), strconv.Itoa(i%repeats)))
				}
			})
		}
		writers.Wait()
		log.Add(with(denied("1", "last"), func(d *decisions.Decision) { d.Verdict = decisions.Allowed }))
		cancel()
		readers.Wait()

		const ofOne, ofTwo = 3 * each, 2 * each // adders 1, 4 and 7; 2 and 5
		equal(t, "told and lost", told+lost, ofOne+1)
		equal(t, "in the log", count(log.Recent(decisions.Filter{}, 0)), adders*each+1)
		equal(t, "in total", log.Totals()[decisions.Kind{Via: decisions.DNS, Verdict: decisions.Denied}], adders*each)
		lines, more := tally.End()
		equal(t, "lines", len(lines), repeats)
		equal(t, "more", more, 0)
		var tallied uint64
		for _, line := range lines {
			tallied += line.Count
		}
		equal(t, "tallied", tallied, ofTwo)
	})
}

func count(found []decisions.Decision) (total uint64) {
	for _, d := range found {
		total += d.Count
	}
	return total
}

// read uses what does not wait until ctx ends, and checks the order of what it gets.
func read(ctx context.Context, t *testing.T, log *decisions.Log) {
	for ctx.Err() == nil {
		var seq uint64
		for _, d := range log.Recent(decisions.Filter{}, 1000) {
			if d.Seq <= seq {
				t.Errorf("%d comes after %d", d.Seq, seq)
			}
			seq = d.Seq
		}
		log.Totals()
		log.Tally("c-0").End()
		f, err := log.Follow(decisions.Filter{})
		if err != nil {
			t.Error(err)
			return
		}
		f.Close()
	}
}

// drain follows until the one decision that is allowed.
func drain(t *testing.T, f *decisions.Follower, most uint64) (told, lost uint64) {
	var seq uint64
	for told+lost <= most {
		d, gap, err := f.Next(t.Context())
		if err != nil || d.Seq <= seq {
			t.Errorf("%d comes after %d, %v", d.Seq, seq, err)
		}
		seq, told, lost = d.Seq, told+1, lost+gap
		if d.Verdict == decisions.Allowed {
			break
		}
	}
	return told, lost
}
