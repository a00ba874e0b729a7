package sandbox

import (
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/internal/errs"
)

// sharedRecords are those of two hosts; what is written is told to both when deliver is called.
type sharedRecords struct {
	mu       sync.Mutex
	revision int64
	at       map[string]int64
	told     []func(*registry)
}

func (s *sharedRecords) Write(_, id string, text []byte, revision int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at[id] != revision {
		return 0, errs.Conflict("changed")
	}
	s.revision++
	now := s.revision
	if s.at[id] = now; text == nil {
		delete(s.at, id)
	}
	s.told = append(s.told, func(r *registry) { _ = r.apply(id, text, now) })
	return now, nil
}

func (s *sharedRecords) deliver(hosts ...*registry) {
	for _, tell := range s.told {
		for _, r := range hosts {
			tell(r)
		}
	}
	s.told = nil
}

func TestHostsShareSandboxes(t *testing.T) {
	shared := &sharedRecords{at: map[string]int64{}}
	one, two := openShared(shared, nil), openShared(shared, nil)
	now := time.Unix(1, 0).UTC()
	put(t, one, box(t, "a", "alice", "/home"), now)
	if _, err := two.Get(box(t, "a", "alice", "/home").ID); err == nil {
		t.Error("known before it was told")
	}
	// What was written last stays, whatever is told late.
	put(t, one, box(t, "a", "alice", "/home/x"), now)
	late := shared.told[:1]
	for _, tell := range late {
		tell(one)
	}
	if got, _ := one.Get(box(t, "a", "alice", "/home").ID); got.WorkingDir.String() != "/home/x" {
		t.Errorf("an older record is in force again: %s", got.WorkingDir)
	}
	shared.deliver(one, two)
	if a, b := shown(one.List()), shown(two.List()); !slices.Equal(a, b) || len(a) != 1 {
		t.Errorf("%q and %q", a, b)
	}
	if _, _, err := two.Put(box(t, "a", "bob", "/home"), now); err == nil {
		t.Error("another user took the id")
	}
	if err := two.Delete(box(t, "a", "alice", "/home").ID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := one.Put(box(t, "a", "alice", "/home/y"), now); err == nil {
		t.Error("what another host has removed meanwhile was written over")
	}
	shared.deliver(one, two)
	if len(one.List())+len(two.List()) != 0 || len(slices.Collect(maps.Keys(one.give))) != 0 {
		t.Errorf("%q, %q", shown(one.List()), shown(two.List()))
	}
	if err := one.apply("a", []byte("{"), 99); err == nil {
		t.Error("a damaged record was taken")
	}
}
