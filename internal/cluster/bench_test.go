package cluster

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
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
