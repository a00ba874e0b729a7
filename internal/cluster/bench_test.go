package cluster

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
)

// BenchmarkSeats claims seats of new users, as a host's calls do: one at a time, and for 1,000 users 32 at a time.
func BenchmarkSeats(b *testing.B) {
	_, hosts := three(b)
	var one []time.Duration
	n := 0
	for b.Loop() {
		n++
		begun := time.Now()
		if _, err := hosts[n%3].Hold(b.Context(), fmt.Sprint("one", n)); err != nil {
			b.Fatal(err)
		}
		one = append(one, time.Since(begun))
	}
	slices.Sort(one)
	begun := time.Now()
	turns := make(chan struct{}, 32)
	var work sync.WaitGroup
	for i := range 1000 {
		turns <- struct{}{}
		work.Go(func() {
			defer func() { <-turns }()
			if _, err := hosts[i%3].Hold(b.Context(), fmt.Sprint("many", i)); err != nil {
				b.Error(err)
			}
		})
	}
	work.Wait()
	b.ReportMetric(float64(one[len(one)/2].Microseconds())/1000, "ms/p50")
	b.ReportMetric(time.Since(begun).Seconds(), "s/1000users")
}

// BenchmarkLoad is what a host that starts pays for what etcd has: it reads all of it.
func BenchmarkLoad(b *testing.B) {
	for _, keys := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprint(keys), func(b *testing.B) {
			etcd, _ := etcdtest.Start(b)
			var putting errgroup.Group
			putting.SetLimit(16)
			const atOnce = 100
			for first := 0; first < keys; first += atOnce {
				putting.Go(func() error {
					var puts []clientv3.Op
					for i := range atOnce {
						puts = append(puts, clientv3.OpPut(keyOf("sandboxes", fmt.Sprint(first+i)), `{"userId":"alice","workingDir":"/home/project","network":true}`))
					}
					_, err := etcd.Txn(b.Context()).Then(puts...).Commit()
					return err
				})
			}
			if err := putting.Wait(); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				c := New(etcd, Config{Host: "h1", Log: zerolog.Nop()})
				if err := c.load(b.Context(), map[string]bool{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
