package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
	"github.com/daycare-run/sandbox/internal/waittest"
)

func fencing(t *testing.T, h *host) {
	t.Helper()
	h.cfg.Fences = true
}

// watchLost has a host fence lost ones off until the test ends.
func (h *host) watchLost(t *testing.T, run func(ctx context.Context, host string, epoch int64) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { h.FenceLost(ctx, Fencing{Run: run, Limit: 10 * time.Second, Again: 20 * time.Millisecond}) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

func TestALostHostIsFencedOffBeforeItsUsersAreTakenOver(t *testing.T) {
	t.Parallel()
	etcd, hosts := three(t)
	s := hosts[0].hold(t, "alice")
	if s.Host != "h1" {
		t.Fatalf("this one in doubt: %+v", s)
	}
	for _, h := range hosts { // it is set while users are held
		fencing(t, h)
	}
	if err := hosts[0].Join(t.Context(), int64(hosts[0].lease)); err != nil { // its service was started again
		t.Fatal(err)
	}
	if _, err := etcd.Revoke(t.Context(), hosts[0].lease); err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts[1:] {
		waittest.Until(t, "the seat has gone", func() bool { _, held := h.Seat("alice"); return !held })
		if _, err := h.Hold(t.Context(), "alice"); !errors.Is(err, ErrNotFenced) || !cerrdefs.IsUnavailable(err) || !strings.Contains(err.Error(), `"h1"`) {
			t.Fatalf("%v", err)
		}
		h.hold(t, "bob-"+h.Host()) // who was not on it does not wait
	}
	var running, runs, beside atomic.Int64
	let := make(chan struct{})
	for _, h := range hosts[1:] {
		h.watchLost(t, func(_ context.Context, host string, epoch int64) error {
			if running.Add(1) > 1 {
				beside.Add(1)
			}
			defer running.Add(-1)
			if host != "h1" || epoch == 0 {
				return fmt.Errorf("%s %d", host, epoch)
			}
			if runs.Add(1) == 1 {
				return errors.New("the first does not succeed")
			}
			<-let
			return nil
		})
	}
	waittest.Until(t, "it was tried again", func() bool { return runs.Load() > 1 })
	if _, err := hosts[1].Hold(t.Context(), "alice"); !errors.Is(err, ErrNotFenced) {
		t.Errorf("while the command runs: %v", err)
	}
	lease, err := etcd.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	if err := hosts[0].Join(t.Context(), int64(lease.ID)); err == nil || !strings.Contains(err.Error(), "fenceCommand") {
		t.Errorf("a host that is being fenced off joined: %v", err)
	}
	close(let)
	waittest.Until(t, "another has the user", func() bool { s, err := hosts[2].Hold(t.Context(), "alice"); return err == nil && s.Host != "h1" })
	if runs.Load() != 2 || beside.Load() > 0 {
		t.Errorf("%d runs, %d beside another", runs.Load(), beside.Load())
	}
	waittest.Until(t, "both runs are told", func() bool {
		got := append(hosts[1].told.all("command "), hosts[2].told.all("command ")...)
		return slices.Equal(slices.Sorted(slices.Values(got)), []string{"command failed", "command ok"})
	})
	if err := hosts[0].Join(t.Context(), int64(lease.ID)); err != nil {
		t.Errorf("it is back: %v", err)
	}
}

func TestAHostThatRunsNothingIsNotFencedOff(t *testing.T) {
	etcd, hosts := three(t)
	for _, h := range hosts {
		fencing(t, h)
	}
	hosts[1].watchLost(t, func(_ context.Context, host string, _ int64) error {
		t.Errorf("the command ran on %s", host)
		return nil
	})
	gone := func(h *host) {
		if _, err := etcd.Revoke(t.Context(), h.lease); err != nil {
			t.Fatal(err)
		}
	}
	// Its fence has killed all.
	hosts[0].hold(t, "alice")
	if err := Left(t.Context(), etcd, "h1", int64(hosts[0].lease)); err != nil {
		t.Fatal(err)
	}
	gone(hosts[0])
	// It has given all its users away.
	s := hosts[2].hold(t, "carol")
	for i := 0; s.Host != "h3"; i++ {
		s = hosts[2].hold(t, fmt.Sprint("carol", i))
	}
	for _, s := range hosts[2].Seated() {
		if err := hosts[2].Give(t.Context(), s.User, false); err != nil {
			t.Fatal(err)
		}
	}
	gone(hosts[2])
	for _, user := range []string{"alice", s.User} {
		waittest.Until(t, "the one that is left has "+user, func() bool { s, err := hosts[1].Hold(t.Context(), user); return err == nil && s.Host == "h2" })
	}
	waittest.Until(t, "it is known that nothing of the others runs", func() bool { return len(hosts[1].lost()) == 0 })
}

func TestAHostThatJoinsAgainIsNotWaitedFor(t *testing.T) {
	etcd, hosts := three(t)
	for _, h := range hosts {
		fencing(t, h)
	}
	hosts[0].hold(t, "alice")
	if _, err := etcd.Revoke(t.Context(), hosts[0].lease); err != nil {
		t.Fatal(err)
	}
	lease, err := etcd.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	if err := hosts[0].Join(t.Context(), int64(lease.ID)); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the user is on some host", func() bool { _, err := hosts[1].Hold(t.Context(), "alice"); return err == nil })
}

func TestAHomeOnOneHostWaitsForIt(t *testing.T) {
	etcd, _ := etcdtest.Start(t)
	h1, h2 := join(t, etcd, "h1"), join(t, etcd, "h2")
	h1.cfg.LocalHomes, h2.cfg.LocalHomes = true, true
	s := h1.hold(t, "alice")
	other, gone := h2, h1
	if s.Host == "h2" {
		other, gone = h1, h2
	}
	if _, err := etcd.Revoke(t.Context(), gone.lease); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the host has gone", func() bool { _, lives := other.Node(s.Host); return !lives })
	waittest.Until(t, "the seat has gone", func() bool { _, held := other.Seat("alice"); return !held })
	if _, err := other.Hold(t.Context(), "alice"); !cerrdefs.IsUnavailable(err) || !strings.Contains(err.Error(), fmt.Sprintf("%q alone", s.Host)) {
		t.Errorf("%v", err)
	}
	other.hold(t, "bob")
	lease, err := etcd.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Join(t.Context(), int64(lease.ID)); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "it is known", func() bool { _, lives := other.Node(s.Host); return lives })
	if now := other.hold(t, "alice"); now.Host != s.Host || now.Epoch == s.Epoch {
		t.Errorf("%+v after %+v", now, s)
	}
}

// A host that does not come back is in the list until it is removed, which nothing that waits for it allows.
func TestALostHostIsRemoved(t *testing.T) {
	etcd, hosts := three(t)
	refused := func(host string, is func(error) bool, text string) {
		t.Helper()
		if err := hosts[1].Remove(t.Context(), host); err == nil || !is(err) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v", err)
		}
	}
	s := hosts[0].hold(t, "alice")
	refused("h1", cerrdefs.IsConflict, `"h1" has a lease`)
	refused("h9", cerrdefs.IsNotFound, `"h9" is not in the cluster`)
	if err := hosts[1].SetDraining(t.Context(), "h1", true); err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Revoke(t.Context(), hosts[0].lease); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "it is lost", func() bool { return slices.Equal(hosts[1].Lost(), []string{"h1"}) })
	hosts[1].cfg.Fences = true
	refused("h1", cerrdefs.IsConflict, "have the program exit with 0 for it")
	hosts[1].cfg.Fences, hosts[1].cfg.LocalHomes = false, true
	refused("h1", cerrdefs.IsConflict, "or a machine with its name")
	hosts[1].cfg.LocalHomes = false
	key := "/daycare/fencing/h1"
	if _, err := etcd.Put(t.Context(), key, "h3"); err != nil {
		t.Fatal(err)
	}
	refused("h1", cerrdefs.IsConflict, "fenceCommand runs on it")
	if _, err := etcd.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if err := hosts[1].Remove(t.Context(), "h1"); err != nil {
		t.Fatal(err)
	}
	if n, _ := hosts[1].Node("h1"); n.Draining || len(hosts[1].Lost()) > 0 {
		t.Errorf("%+v, %q", n, hosts[1].Lost())
	}
	refused("h1", cerrdefs.IsNotFound, "is not in the cluster")
	hosts[1].cfg.Fences = true // nobody waits for it
	if now := hosts[1].hold(t, "alice"); now.Epoch <= s.Epoch {
		t.Errorf("%+v after %+v", now, s)
	}
	lease, err := etcd.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	if err := hosts[0].Join(t.Context(), int64(lease.ID)); err != nil {
		t.Errorf("it is back: %v", err)
	}
}
