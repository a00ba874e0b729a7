package decisions_test

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

const benchCapacity = 16 << 10

// full returns a log that many users have filled.
func full() *decisions.Log {
	log := decisions.New(benchCapacity)
	for i := range benchCapacity {
		log.Add(denied(strconv.Itoa(i%1000), strconv.Itoa(i)+".example.org"))
	}
	return log
}

func repeat(b *testing.B, log *decisions.Log) {
	d := denied("ann", "registry.example.org")
	log.Add(d)
	b.ReportAllocs()
	for b.Loop() {
		log.Add(d)
	}
}

func BenchmarkAddRepeat(b *testing.B) { repeat(b, full()) }

func BenchmarkAddRepeatFollowed(b *testing.B) {
	b.Run("slowly", func(b *testing.B) {
		log := full()
		follow(b, log, decisions.Filter{})
		repeat(b, log)
	})
	b.Run("eagerly", func(b *testing.B) {
		log := full()
		defer background(func(ctx context.Context, f *decisions.Follower) { _, _, _ = f.Next(ctx) }, follow(b, log, decisions.Filter{}))()
		repeat(b, log)
	})
	b.Run("elsewhere", func(b *testing.B) {
		log := full()
		follow(b, log, decisions.Filter{User: "bob"})
		repeat(b, log)
	})
}

func BenchmarkAddRepeatTallied(b *testing.B) {
	for _, calls := range []int{1, 500} {
		b.Run(strconv.Itoa(calls), func(b *testing.B) {
			log := full()
			for range calls {
				defer log.Tally("c-ann").End()
			}
			repeat(b, log)
		})
	}
	b.Run("watched", func(b *testing.B) {
		log := full()
		tally := log.Tally("c-ann")
		defer tally.End()
		defer background(func(ctx context.Context, t *decisions.Tally) { _, _ = t.Next(ctx) }, tally)()
		repeat(b, log)
	})
	b.Run("elsewhere", func(b *testing.B) {
		log := full()
		defer log.Tally("c-bob").End()
		repeat(b, log)
	})
}

func BenchmarkAddRepeatWhileRead(b *testing.B) {
	log := full()
	defer background(func(_ context.Context, l *decisions.Log) { l.Recent(decisions.Filter{}, 100) }, log)()
	repeat(b, log)
}

func BenchmarkAddRepeatParallel(b *testing.B) {
	log := full()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		d := denied("ann", "registry.example.org")
		for pb.Next() {
			log.Add(d)
		}
	})
}

// BenchmarkAddNew adds names that are not in the log any more.
func BenchmarkAddNew(b *testing.B) {
	fresh := make([]string, 2*benchCapacity)
	for i := range fresh {
		fresh[i] = strconv.Itoa(i) + ".example.net"
	}
	log, d := full(), denied("mallory", "")
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		d.Name = fresh[i%len(fresh)]
		log.Add(d)
		i++
	}
}

func BenchmarkAddNewTallied(b *testing.B) {
	log, d := full(), denied("mallory", "")
	for range 500 {
		defer log.Tally("c-mallory").End()
	}
	i := 0
	for b.Loop() {
		d.Name = strconv.Itoa(i % benchCapacity)
		log.Add(d)
		i++
	}
}

func BenchmarkRecent(b *testing.B) {
	log := full()
	for b.Loop() {
		log.Recent(decisions.Filter{}, 100)
	}
}

// background does something over and over until the function that it returns is called.
func background[T any](do func(context.Context, T), with T) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			do(ctx, with)
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}
