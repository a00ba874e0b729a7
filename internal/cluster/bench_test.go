package cluster

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// BenchmarkSeats claims seats of new users, as calls at several hosts do: one at a time, and for 1,000 users 32 at a time. Then
// it is how long a record that one host writes takes until all know it.
func BenchmarkSeats(b *testing.B) {
	for _, there := range []int{3, 100} {
		b.Run(fmt.Sprint(there), func(b *testing.B) {
			etcd, _ := etcdtest.Start(b)
			var hosts []*host
			for i := range there {
				hosts = append(hosts, join(b, etcd, fmt.Sprintf("h%d", i+1)))
			}
			for _, h := range hosts {
				waittest.Until(b, "each knows all", func() bool { return len(h.Nodes()) == there })
			}
			var one, lags []time.Duration
			n := 0
			for b.Loop() {
				n++
				begun := time.Now()
				user := fmt.Sprint("one", n)
				if _, err := hosts[n%there].Hold(b.Context(), user); err != nil {
					b.Fatal(err)
				}
				one = append(one, time.Since(begun))
			}
			slices.Sort(one)
			begun := time.Now()
			var work errgroup.Group
			work.SetLimit(32)
			for i := range 1000 {
				work.Go(func() error {
					_, err := hosts[i%there].Hold(b.Context(), fmt.Sprint("many", i))
					return err
				})
			}
			if err := work.Wait(); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(1000/time.Since(begun).Seconds(), "claims/s")
			for i := range 100 {
				seat, err := hosts[i%there].Hold(b.Context(), "one1")
				if err != nil {
					b.Fatal(err)
				}
				holder := hosts[slices.IndexFunc(hosts, func(h *host) bool { return h.Host() == seat.Host })]
				begun := time.Now()
				revision, err := holder.Write(b.Context(), "one1", Change{Kind: "sandboxes", Name: "a", Value: []byte(`{"userId":"one1"}`)})
				if err != nil {
					b.Fatal(err)
				}
				for _, h := range hosts {
					if err := h.Reached(b.Context(), revision); err != nil {
						b.Fatal(err)
					}
				}
				lags = append(lags, time.Since(begun))
			}
			slices.Sort(lags)
			b.ReportMetric(float64(one[len(one)/2].Microseconds())/1000, "ms/claim")
			b.ReportMetric(float64(lags[len(lags)/2].Microseconds())/1000, "ms/lag")
			b.ReportMetric(float64(lags[len(lags)*95/100].Microseconds())/1000, "ms/lag95")
		})
	}
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
