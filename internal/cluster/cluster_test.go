package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// host is a Cluster with a lease.
type host struct {
	*Cluster
	lease clientv3.LeaseID
	told  *told
}

func join(t testing.TB, etcd *clientv3.Client, name string) *host {
	t.Helper()
	told := &told{}
	c := New(etcd, Config{Host: name, Address: name + ":1", Version: "test", Events: events.New(told.add), Log: zerolog.Nop()})
	first := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx, first) })
	t.Cleanup(func() { cancel(); running.Wait() })
	<-first
	lease, err := etcd.Grant(ctx, 60)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Join(ctx, int64(lease.ID)); err != nil {
		t.Fatal(err)
	}
	return &host{c, lease.ID, told}
}

func (h *host) hold(t *testing.T, user string) Seat {
	t.Helper()
	s, err := h.Hold(t.Context(), user)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func three(t testing.TB) (*clientv3.Client, []*host) {
	etcd, _ := etcdtest.Start(t)
	hosts := []*host{join(t, etcd, "h1"), join(t, etcd, "h2"), join(t, etcd, "h3")}
	for _, h := range hosts {
		waittest.Until(t, "each knows all", func() bool { return len(h.Nodes()) == 3 })
	}
	return etcd, hosts
}

func TestAUserHasOneSeat(t *testing.T) {
	_, hosts := three(t)
	var work sync.WaitGroup
	got := make([]Seat, 30)
	for i := range got {
		work.Go(func() { got[i], _ = hosts[i%3].Hold(t.Context(), "alice") })
	}
	work.Wait()
	for _, s := range got {
		if s != got[0] || s.Epoch == 0 {
			t.Fatalf("%+v and %+v", got[0], s)
		}
	}
}

func TestUsersAreSpreadEvenly(t *testing.T) {
	_, hosts := three(t)
	var work sync.WaitGroup
	turns := make(chan struct{}, 32)
	for i := range 1000 {
		work.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			if _, err := hosts[i%3].Hold(t.Context(), fmt.Sprintf("u%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	waittest.Until(t, "all are known", func() bool {
		all := 0
		for _, n := range hosts[0].Nodes() {
			all += n.Users
		}
		return all == 1000
	})
	for _, n := range hosts[0].Nodes() {
		if n.Users < 300 || n.Users > 367 {
			t.Errorf("%s has %d", n.Name, n.Users)
		}
	}
}

func TestSeatsOfAnEndedLeaseAreFree(t *testing.T) {
	etcd, hosts := three(t)
	s := hosts[0].hold(t, "alice")
	if s.Host != "h1" {
		t.Fatalf("this one in doubt: %+v", s)
	}
	told := make(chan Seat, 10)
	go hosts[1].Watch(t.Context(), func(s Seat) { told <- s })
	if first := <-told; first != s {
		t.Fatalf("%+v", first)
	}
	if _, err := etcd.Revoke(t.Context(), hosts[0].lease); err != nil {
		t.Fatal(err)
	}
	if gone := <-told; gone != (Seat{User: "alice"}) {
		t.Fatalf("%+v", gone)
	}
	if next := hosts[1].hold(t, "alice"); next.Host == "h1" || next.Epoch <= s.Epoch {
		t.Errorf("%+v after %+v", next, s)
	}
}

func TestOnlyTheHolderWrites(t *testing.T) {
	etcd, hosts := three(t)
	h1, h2 := hosts[0], hosts[1]
	h1.hold(t, "alice")
	waittest.Until(t, "h2 knows it", func() bool { _, ok := h2.Seat("alice"); return ok })
	if _, err := h2.Write(t.Context(), "alice", Change{Kind: "sandboxes", Name: "a", Value: []byte("2")}); !cerrdefs.IsUnavailable(err) {
		t.Errorf("another's user: %v", err)
	}
	none := int64(0)
	revision, err := h1.Write(t.Context(), "alice", Change{Kind: "sandboxes", Name: "a", Value: []byte("1"), If: &none})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h1.Write(t.Context(), "alice", Change{Kind: "sandboxes", Name: "a", Value: []byte("3"), If: &none}); !cerrdefs.IsConflict(err) {
		t.Errorf("a record that is there: %v", err)
	}
	if _, err := h1.Write(t.Context(), "alice", Change{Kind: "sandboxes", Name: "a", Value: []byte("4"), If: &revision}); err != nil {
		t.Error(err)
	}
	// It believes that it has the seat, and has not.
	h1.mu.Lock()
	s := h1.seats["alice"]
	h1.mu.Unlock()
	if _, err := etcd.Delete(t.Context(), "/daycare/seats/alice"); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "it knows", func() bool { _, ok := h1.Seat("alice"); return !ok })
	h1.mu.Lock()
	h1.seats["alice"] = s
	h1.mu.Unlock()
	if _, err := h1.Write(t.Context(), "alice", Change{Kind: "sandboxes", Name: "a", Value: []byte("5")}); !cerrdefs.IsConflict(err) {
		t.Errorf("with an epoch that has passed: %v", err)
	}
	if value, err := h2.Read(t.Context(), "sandboxes", "a"); string(value) != "4" || err != nil {
		t.Errorf("%s, %v", value, err)
	}
}

func TestADrainingHostTakesNobody(t *testing.T) {
	_, hosts := three(t)
	for _, name := range []string{"h1", "h2"} {
		if err := hosts[2].SetDraining(t.Context(), name, true); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 {
		if s := hosts[2].hold(t, fmt.Sprint("u", i)); s.Host != "h3" {
			t.Errorf("%+v", s)
		}
	}
	if err := hosts[2].SetDraining(t.Context(), "h3", true); err != nil {
		t.Fatal(err)
	}
	if _, err := hosts[2].Hold(t.Context(), "late"); !cerrdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "each that has a lease is draining") {
		t.Errorf("%v", err)
	}
	if err := hosts[2].SetDraining(t.Context(), "h1", false); err != nil {
		t.Fatal(err)
	}
	if err := hosts[2].Give(t.Context(), "u0", false); err != nil {
		t.Fatal(err)
	}
	if s := hosts[2].hold(t, "u0"); s.Host != "h1" {
		t.Errorf("given: %+v", s)
	}
	if err := hosts[2].SetDraining(t.Context(), "nobody", true); !cerrdefs.IsNotFound(err) {
		t.Errorf("%v", err)
	}
}

func TestRecordsAreToldInOrder(t *testing.T) {
	etcd, hosts := three(t)
	hosts[0].hold(t, "alice")
	for i := range 5 {
		if _, err := hosts[0].Write(t.Context(), "alice", Change{Kind: "sandboxes", Name: "a", Value: []byte{byte('0' + i)}}); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	var seen string
	late := New(etcd, Config{Host: "late", Log: zerolog.Nop()})
	late.Keep("sandboxes", func(name string, value []byte, _ int64) {
		mu.Lock()
		defer mu.Unlock()
		seen += string(value)
		if value == nil {
			seen += "-"
		}
	})
	first := make(chan struct{})
	go late.Run(t.Context(), first)
	<-first
	revision, err := hosts[0].Write(t.Context(), "alice", Change{Kind: "sandboxes", Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if err := late.Reached(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if seen != "4-" {
		t.Errorf("%q", seen)
	}
}

func TestAnIDHasOneHome(t *testing.T) {
	_, hosts := three(t)
	for _, tt := range []struct {
		user, gone string
		want       bool
	}{{"alice", "", true}, {"bob", "", false}, {"alice", "", true}, {"bob", "carol", false}, {"bob", "alice", true}, {"alice", "", false}} {
		if got, err := hosts[0].Owner(t.Context(), 200000, tt.user, func(other string) bool { return other == tt.gone }); got != tt.want || err != nil {
			t.Errorf("%s: %t, %v", tt.user, got, err)
		}
	}
}

// A host that has another lease holds nobody by the seats of the one before: those end by themselves.
func TestSeatsOfAnEarlierLeaseHoldNobody(t *testing.T) {
	etcd, hosts := three(t)
	h1, h2 := hosts[0], hosts[1]
	s := h1.hold(t, "alice")
	if err := h1.MayStart("alice", int64(h1.lease)); err != nil {
		t.Error(err)
	}
	if err := h2.MayStart("alice", int64(h2.lease)); !cerrdefs.IsUnavailable(err) {
		t.Errorf("another's user: %v", err)
	}
	before, _ := h2.Node("h1")
	next, err := etcd.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	if err := h1.MayStart("alice", int64(next.ID)); !cerrdefs.IsUnavailable(err) {
		t.Errorf("with the next lease: %v", err)
	}
	if err := h1.Join(t.Context(), int64(next.ID)); err != nil {
		t.Fatal(err)
	}
	if now, held := h1.Seat("alice"); held {
		t.Errorf("it is still there: %+v", now)
	}
	// Who has not heard of the next lease places nobody on the one before.
	if err := h2.claim(t.Context(), "bob", before); !errors.Is(err, errHostGone) {
		t.Errorf("%v", err)
	}
	if again := h1.hold(t, "alice"); again.Lease == s.Lease {
		t.Errorf("%+v", again)
	}
	if err := h1.Join(t.Context(), int64(next.ID)); err != nil { // as a service does that was exchanged
		t.Fatal(err)
	}
	if s := h1.hold(t, "alice"); s.Host == "h1" && h1.MayStart("alice", int64(next.ID)) != nil {
		t.Error("its users are lost")
	}
}
