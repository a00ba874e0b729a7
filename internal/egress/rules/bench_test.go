package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
)

// crowd is a configuration and a state with that many containers.
func crowd(w *world, n int) (Config, State) {
	cfg := w.cfg
	cfg.Bridges = slices.Clone(cfg.Bridges)
	cfg.Bridges[0].Subnet, cfg.Bridges[0].Gateway = netip.MustParsePrefix("10.80.0.0/12"), netip.MustParseAddr("10.80.0.1")
	var state State
	addr := netip.MustParseAddr("10.90.0.1")
	for i := range n {
		state.Containers = append(state.Containers, addr)
		state.Bindings = append(state.Bindings, Binding{Veth: fmt.Sprintf("v%d", i), MAC: w.i1.mac, Addr: addr})
		addr = addr.Next()
	}
	return cfg, state
}

func TestManyContainers(t *testing.T) {
	w := newWorld(t)
	cfg, state := crowd(w, 5000)
	table, err := New(cfg)
	must(t, err)
	defer table.Close()
	must(t, table.Apply(t.Context(), state))
	inTune(t, table)
	must(t, table.Remove(state.Containers[0]))
	inTune(t, table)
}

// percentiles reports the median and the 99th of a hundred.
func percentiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-µs")
}

func BenchmarkAddBindRemove(b *testing.B) {
	for _, n := range []int{0, 1000} {
		b.Run(fmt.Sprintf("among %d", n), func(b *testing.B) {
			w := newWorld(b)
			cfg, state := crowd(w, n)
			table, err := New(cfg)
			must(b, err)
			defer table.Close()
			state.Containers = append(state.Containers, w.l2.addr)
			state.Bindings = append(state.Bindings, w.l2.binding())
			must(b, table.Apply(b.Context(), state))
			item := w.l1
			track(b, w)
			var took []time.Duration
			b.ResetTimer()
			for range b.N {
				start := time.Now()
				must(b, table.Add(item.addr))
				must(b, table.Bind(item.binding()))
				must(b, table.Remove(item.addr))
				took = append(took, time.Since(start))
			}
			percentiles(b, took)
		})
	}
}

// track leaves a flow, of another container: tables of connections that are empty are not searched.
func track(b *testing.B, w *world) {
	w.host.serveAt(b, &arrivals{}, netip.AddrPortFrom(w.l2.gateway, 53))
	if !w.l2.udp(w.l2.gateway, 53, "tracked") {
		b.Fatal("no flow to begin with")
	}
}

func BenchmarkAddRemove(b *testing.B) {
	w := newWorld(b)
	w.apply(b)
	track(b, w)
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		must(b, w.table.Add(w.i1.addr))
		must(b, w.table.Remove(w.i1.addr))
		took = append(took, time.Since(start))
	}
	percentiles(b, took)
}

func BenchmarkForget(b *testing.B) {
	w := newWorld(b)
	w.apply(b)
	track(b, w)
	for b.Loop() {
		must(b, w.table.Forget(w.i1.addr))
	}
}

func BenchmarkForgetOneByOne(b *testing.B) {
	w := newWorld(b)
	w.apply(b)
	track(b, w)
	for b.Loop() {
		must(b, w.table.track(func(sock *netlink.Conn) error { return forgetOneByOne(sock, w.i1.addr) }))
	}
}

func BenchmarkApply(b *testing.B) {
	w := newWorld(b)
	cfg, state := crowd(w, 1000)
	table, err := New(cfg)
	must(b, err)
	defer table.Close()
	for b.Loop() {
		must(b, table.Apply(b.Context(), state))
	}
}

func BenchmarkCheck(b *testing.B) {
	w := newWorld(b)
	cfg, state := crowd(w, 1000)
	table, err := New(cfg)
	must(b, err)
	defer table.Close()
	must(b, table.Apply(b.Context(), state))
	for _, unchanged := range []bool{true, false} {
		b.Run(map[bool]string{true: "unchanged", false: "listed"}[unchanged], func(b *testing.B) {
			for b.Loop() {
				if !unchanged {
					table.verified = 0
				}
				if drift, err := table.Check(b.Context()); drift != "" || err != nil {
					b.Fatal(drift, err)
				}
			}
		})
	}
}
