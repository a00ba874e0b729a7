package decisions_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

func follow(t testing.TB, log *decisions.Log, filter decisions.Filter) *decisions.Follower {
	t.Helper()
	f, err := log.Follow(filter)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

func TestAFollowerIsToldOfEachThatMatches(t *testing.T) {
	log := decisions.New(10)
	log.Add(denied("ann", "before.test"))
	f := follow(t, log, decisions.Filter{User: "ann"})
	log.Add(denied("ann", "a.test"))
	log.Add(denied("bob", "b.test"))
	log.Add(denied("ann", "a.test"))
	for _, seq := range []uint64{2, 4} {
		d, lost, err := f.Next(t.Context())
		want := with(denied("ann", "a.test"), func(d *decisions.Decision) { d.Seq, d.Count, d.First = seq, 1, start })
		equal(t, "decision", d, want)
		equal(t, "lost", lost, 0)
		equal(t, "told", err == nil, true)
	}
}

func TestASlowFollowerIsToldWhatItLost(t *testing.T) {
	const backlog = 1024
	for _, row := range []struct{ added, lost uint64 }{
		{1, 0}, {backlog, 0}, {backlog + 1, 1}, {backlog + 5, 5}, {10 * backlog, 9 * backlog},
	} {
		t.Run(fmt.Sprint(row.added), func(t *testing.T) {
			log := decisions.New(10)
			f := follow(t, log, decisions.Filter{Verdict: decisions.Denied})
			next := uint64(1)
			for range 3 { // what was told is not told again
				for range row.added {
					log.Add(denied("ann", "a.test"))
					log.Add(decisions.Decision{Verdict: decisions.Allowed})
				}
				next += 2 * row.lost
				for i := range row.added - row.lost {
					d, lost, err := f.Next(t.Context())
					if want := row.lost; d.Seq != next || err != nil || i == 0 && lost != want || i > 0 && lost != 0 {
						t.Fatalf("got %d, lost %d, %v; want %d", d.Seq, lost, err, next)
					}
					next += 2
				}
			}
		})
	}
}

func TestNextWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := decisions.New(10)
		f := follow(t, log, decisions.Filter{User: "ann"})
		got := make(chan string)
		go func() {
			defer close(got)
			for {
				d, _, err := f.Next(t.Context())
				if err != nil {
					equal(t, "ended by Close", errors.Is(err, io.EOF), true)
					return
				}
				got <- d.Name
			}
		}()
		quiet := func() {
			synctest.Wait()
			select {
			case name := <-got:
				t.Errorf("told of %q", name)
			default:
			}
		}
		quiet()
		log.Add(denied("bob", "b.test"))
		quiet()
		for range 2 {
			log.Add(denied("ann", "a.test"))
			log.Add(denied("ann", "b.test"))
			equal(t, "told", []string{<-got, <-got}, []string{"a.test", "b.test"})
			quiet()
		}
		log.Add(denied("ann", "c.test"))
		equal(t, "told", <-got, "c.test")
		quiet()
		f.Close()
		if name, more := <-got; more {
			t.Errorf("told of %q after Close", name)
		}
	})
}

func TestNextEnds(t *testing.T) {
	log := decisions.New(10)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, row := range []struct {
		name   string
		ctx    context.Context
		closed bool
		want   error
	}{
		{"with the context", gone, false, context.Canceled},
		{"with Close", t.Context(), true, io.EOF},
	} {
		f := follow(t, log, decisions.Filter{})
		log.Add(denied("ann", "a.test"))
		if row.closed {
			f.Close()
			f.Close()
		}
		if d, _, err := f.Next(row.ctx); !errors.Is(err, row.want) || d.Seq != 0 {
			t.Errorf("%s: got %v, %v", row.name, d, err)
		}
	}
}

func TestACancelledContextEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, decisions.New(10), decisions.Filter{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			_, _, err := f.Next(ctx)
			ended <- err
		}()
		synctest.Wait()
		cancel()
		equal(t, "canceled", errors.Is(<-ended, context.Canceled), true)
	})
}

func TestFollowersAreBounded(t *testing.T) {
	log := decisions.New(10)
	var last *decisions.Follower
	for range 32 {
		last = follow(t, log, decisions.Filter{})
	}
	if _, err := log.Follow(decisions.Filter{}); !errdefs.IsResourceExhausted(err) {
		t.Errorf("got %v for one too many", err)
	}
	last.Close()
	follow(t, log, decisions.Filter{})
}
