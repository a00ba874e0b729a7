package process

import (
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// Everything at the same time; at the end records and containers are one.
func TestEverythingAtOnce(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	var ids []string
	for n := range 6 {
		ids = append(ids, s.start(Intent{KeepAlive: n%3 != 0}).ID)
	}
	var work sync.WaitGroup
	for n := range 16 {
		work.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(n)))
			for range 60 {
				id := ids[random.IntN(len(ids))]
				var err error
				switch what := random.IntN(20); {
				case what < 8:
					for _, container := range h.of(id) {
						h.end(container, Exit{Code: 1})
					}
					s.Ended(id)
				case what < 14:
					h.clock.advance(time.Duration(random.IntN(5)) * time.Second)
				case what < 17:
					s.Lost()
				case what == 17 && random.IntN(4) == 0:
					_, err = s.Stop(t.Context(), "alice", id, syscall.SIGTERM)
				case what == 18 && random.IntN(8) == 0:
					err = s.Remove(t.Context(), "alice", id)
				default:
					s.List("alice")
				}
				if err != nil && !errdefs.IsNotFound(err) {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	s.settle()
	s.reconcile()
	for range 3 { // for waits
		s.pass(time.Minute)
	}
	running := 0
	for _, r := range s.List("alice") {
		in := h.of(r.ID)
		running += len(in)
		if (r.Status == Running) != (len(in) == 1) || r.wanted() && r.Status != Running || r.DesiredState == Stopped && r.Status != Stopped {
			t.Errorf("runs in %v: %+v", in, r)
		}
		on, err := s.store.(store).read(r.ID)
		if err != nil || on.Status != r.Status || on.Instance.Container != r.Instance.Container {
			t.Errorf("on disk it is %+v, %v", on, err)
		}
	}
	if h.count() != running {
		t.Errorf("%d containers, of which %d are recorded", h.count(), running)
	}
}

// A process ends by itself while it is stopped, and while the timer of its next start fires.
func TestStopAgainstExitAgainstTimer(t *testing.T) {
	for range 50 {
		h := newHost(t)
		s := h.serve()
		r := s.start(Intent{KeepAlive: true})
		var work sync.WaitGroup
		work.Go(func() {
			for _, container := range h.of(r.ID) {
				h.end(container, Exit{Code: 1})
			}
			s.Ended(r.ID)
		})
		work.Go(func() { h.clock.advance(2 * time.Second) })
		work.Go(func() {
			if _, err := s.Stop(t.Context(), "alice", r.ID, syscall.SIGINT); err != nil {
				t.Error(err)
			}
		})
		work.Wait()
		s.pass(time.Hour)
		if r = s.get(r.ID); r.Status != Stopped || h.count() != 0 || len(h.clock.waiting()) != 0 {
			t.Fatalf("%d containers, %+v", h.count(), r)
		}
		s.shutdown()
	}
}
