package process

import (
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"
)

// sharedRecords are those of a cluster; holder is the host that may write.
type sharedRecords struct {
	mu     sync.Mutex
	holder string
	values map[string][]byte
}

// by is what a host has of them.
type by struct {
	*sharedRecords
	host string
}

func (b by) Write(user string, values map[string][]byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holder != b.host {
		return errors.New("another host holds the user")
	}
	for name, value := range values {
		if b.values[user+"/"+name] = value; value == nil {
			delete(b.values, user+"/"+name)
		}
	}
	return nil
}

func (b by) Read(user, name string) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.values[user+"/"+name], nil
}

func (b by) List(user string) (map[string][]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := map[string][]byte{}
	for name, value := range maps.All(b.values) {
		if rest, ok := strings.CutPrefix(name, user+"/"); ok {
			own[rest] = value
		}
	}
	return own, nil
}

func (b by) Holds(string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.holder == b.host
}

// What runs of a user whom the host holds stays until the user's records are read, and goes when another host holds the user.
func TestWhatIsNotReadIsNoStray(t *testing.T) {
	shared := &sharedRecords{holder: "h1", values: map[string][]byte{}}
	h := newHost(t)
	on := func(cfg *Config) { cfg.Shared, cfg.KeyFile = by{shared, "h1"}, h.root+"/key" }
	s := h.serve(on)
	kept := s.start(Intent{KeepAlive: true}, nil)
	s = h.serve(on) // started again
	if err := s.Reconcile(t.Context()); err != nil || h.count() != 1 {
		t.Fatalf("%d containers, %v", h.count(), err)
	}
	if err := s.Adopt("alice"); err != nil {
		t.Fatal(err)
	}
	s.settle()
	if r := s.get(kept.ID); r.Status != Running || r.RestartCount != 0 || h.count() != 1 {
		t.Errorf("%+v, %d containers", r, h.count())
	}

	shared.holder = "h2" // while it was away
	s = h.serve(on)
	if err := s.Reconcile(t.Context()); err != nil || h.count() != 0 {
		t.Errorf("%d containers of another host's user, %v", h.count(), err)
	}
}

func TestAnotherHostTakesProcessesOver(t *testing.T) {
	shared := &sharedRecords{holder: "h1", values: map[string][]byte{}}
	first, second := newHost(t), newHost(t)
	second.boot = "boot-of-another"
	on := func(name string, h *host) func(*Config) {
		return func(cfg *Config) { cfg.Shared, cfg.KeyFile = by{shared, name}, first.root+"/key" }
	}
	h1, h2 := first.serve(on("h1", first)), second.serve(on("h2", second))
	kept := h1.start(Intent{KeepAlive: true}, map[string]string{"TOKEN": "secret"})
	once := h1.start(Intent{})
	if !h1.Busy("alice") {
		t.Error("a process that is not started again is nothing to wait for")
	}

	shared.holder = "h2" // the first is lost
	if err := h2.Adopt("alice"); err != nil {
		t.Fatal(err)
	}
	h2.settle()
	h2.pass(0) // it is started at once: that its host was lost is no failure of its own
	says(t, h2.get(once.ID), "running/exited exit -, its host was lost, or gave the user to another")
	if r := h2.get(kept.ID); r.Status != Running || r.RestartCount != 1 || r.BackoffMs != 0 {
		t.Errorf("%+v", r)
	}
	if err := h2.Adopt("alice"); err != nil || len(h2.List("alice")) != 2 {
		t.Errorf("adopted twice: %v, %d", err, len(h2.List("alice")))
	}

	// The first comes back, and has nothing of it any more.
	if err := h1.Release(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	h1.settle()
	if left := first.count(); left != 0 || len(h1.List("alice")) != 0 {
		t.Errorf("%d containers, %d processes", left, len(h1.List("alice")))
	}
	if err := h2.Remove(t.Context(), "alice", kept.ID); err != nil {
		t.Fatal(err)
	}
	for name := range shared.values {
		if strings.Contains(name, kept.ID) {
			t.Errorf("%s is left", name)
		}
	}
}

// A host that takes processes over starts four at a time.
func TestFourAtATimeAreTakenOver(t *testing.T) {
	const processes, atOnce = 12, 4
	shared := &sharedRecords{holder: "h1", values: map[string][]byte{}}
	first, second := newHost(t), newHost(t)
	second.boot = "boot-of-another"
	on := func(name string, h *host) *service {
		return h.serve(func(cfg *Config) { cfg.Shared, cfg.KeyFile = by{shared, name}, first.root+"/key" })
	}
	h1, h2 := on("h1", first), on("h2", second)
	for range processes {
		h1.start(Intent{KeepAlive: true})
	}
	shared.holder = "h2"
	starting, let := make(chan string, processes), make(chan struct{})
	h2.run.onStart = func(r Record) error {
		starting <- r.ID
		<-let
		return nil
	}
	if err := h2.Adopt("alice"); err != nil {
		t.Fatal(err)
	}
	h2.settle()
	second.clock.advance(0)
	for range atOnce {
		<-starting
	}
	select {
	case id := <-starting:
		t.Errorf("%s is started beside four others", id)
	case <-time.After(100 * time.Millisecond): // nothing shows that nothing happens
	}
	close(let)
	h2.settle()
	if n := second.count(); n != processes {
		t.Errorf("%d run", n)
	}
}
