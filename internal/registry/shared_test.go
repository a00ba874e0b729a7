package registry

import (
	"encoding/json"
	"fmt"
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
	told     []func(*Registry)
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
	s.told = append(s.told, func(r *Registry) { _ = r.Apply(id, text, now) })
	return now, nil
}

func (s *sharedRecords) deliver(hosts ...*Registry) {
	for _, tell := range s.told {
		for _, r := range hosts {
			tell(r)
		}
	}
	s.told = nil
}

func TestHostsShareSandboxes(t *testing.T) {
	shared := &sharedRecords{at: map[string]int64{}}
	one, two := OpenShared(shared, nil), OpenShared(shared, nil)
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
	if err := one.Apply("a", []byte("{"), 99); err == nil {
		t.Error("a damaged record was taken")
	}
}

// written is Records that are told of each write.
type written func(id string) (int64, error)

func (w written) Write(_, id string, _ []byte, _ int64) (int64, error) { return w(id) }

func TestRecordsAreWrittenBesideEachOther(t *testing.T) {
	var r *Registry
	var both, writing sync.WaitGroup
	both.Add(2)
	r = OpenShared(written(func(id string) (int64, error) {
		_ = r.List()
		both.Done()
		met := make(chan struct{})
		go func() { both.Wait(); close(met) }()
		select {
		case <-met:
			return 1, nil
		case <-time.After(10 * time.Second):
			return 0, errs.Conflict("%s is written alone", id)
		}
	}), nil)
	one, other := box(t, "a", "alice", "/home"), box(t, "b", "alice", "/home")
	for i := 0; r.lockOf(other.ID) == r.lockOf(one.ID); i++ {
		other = box(t, fmt.Sprint("b", i), "alice", "/home")
	}
	for _, s := range []Sandbox{one, other} {
		writing.Go(func() {
			if _, _, err := r.Put(s, monday); err != nil {
				t.Error(err)
			}
		})
	}
	writing.Wait()
}

// toldAtOnce are Records whose changes are applied before Write returns.
type toldAtOnce func(id string, text []byte, revision int64) error

func (t toldAtOnce) Write(_, id string, text []byte, revision int64) (int64, error) {
	return revision + 1, t(id, text, revision+1)
}

func TestNothingIsLeftOfWhatIsDeleted(t *testing.T) {
	var r *Registry
	r = OpenShared(toldAtOnce(func(id string, text []byte, revision int64) error { return r.Apply(id, text, revision) }), nil)
	agent := box(t, "agent", "alice", "/home")
	put(t, r, agent, monday)
	if err := r.Delete(agent.ID); err != nil {
		t.Fatal(err)
	}
	if len(r.sandboxes)+len(r.revisions)+len(r.give)+len(r.active) != 0 {
		t.Errorf("%v, %v", r.sandboxes, r.revisions)
	}
}

func TestNoCommandBeginsInWhatIsBeingPaused(t *testing.T) {
	agent := box(t, "agent", "alice", "/home")
	var r *Registry
	r = OpenShared(written(func(string) (int64, error) {
		if end, paused, err := r.Begin(agent); err == nil && !paused {
			end()
			return 0, errs.Conflict("a command has begun")
		}
		return 1, nil
	}), nil)
	r.sandboxes[agent.ID] = agent
	if _, err := r.SetPaused(agent.ID, true); err != nil {
		t.Error(err)
	}
	r.shared = written(func(string) (int64, error) { return 0, errs.Conflict("no") })
	if _, err := r.SetPaused(agent.ID, false); err == nil || !r.sandboxes[agent.ID].Paused {
		t.Errorf("it is not recorded that it goes on, and it does: %v", err)
	}
}

// What another host has written while a pause could not be recorded stays.
func TestAPauseThatFailsKeepsWhatIsNewer(t *testing.T) {
	agent, newer := box(t, "agent", "alice", "/home"), box(t, "agent", "alice", "/home/newer")
	text, err := json.Marshal(newRecord(newer))
	if err != nil {
		t.Fatal(err)
	}
	var r *Registry
	r = OpenShared(written(func(string) (int64, error) {
		if err := r.Apply("agent", text, 9); err != nil {
			t.Error(err)
		}
		return 0, errs.Conflict("changed")
	}), nil)
	r.sandboxes[agent.ID], r.revisions[agent.ID] = agent, 8
	if _, err := r.SetPaused(agent.ID, true); err == nil {
		t.Error("it is paused, although that is not recorded")
	}
	if got, err := r.Get(agent.ID); err != nil || !got.same(newer) || got.Paused {
		t.Errorf("%+v, %v", got, err)
	}
}

// What an earlier change's echo says while the next one is being written is older.
func TestALateEchoUndoesNoPause(t *testing.T) {
	agent := box(t, "agent", "alice", "/home")
	text, err := json.Marshal(newRecord(agent))
	if err != nil {
		t.Fatal(err)
	}
	var r *Registry
	r = OpenShared(written(func(string) (int64, error) {
		if err := r.Apply("agent", text, 8); err != nil {
			t.Error(err)
		}
		return 9, nil
	}), nil)
	r.sandboxes[agent.ID], r.revisions[agent.ID] = agent, 8
	if _, err := r.SetPaused(agent.ID, true); err != nil || !r.IsPaused("alice", "agent") {
		t.Errorf("it is not paused: %v", err)
	}
}

func TestARemovalWaitsForARegistration(t *testing.T) {
	agent := box(t, "agent", "alice", "/home")
	var r *Registry
	r = OpenShared(written(func(string) (int64, error) {
		if !r.IsBusy(agent.User) {
			t.Error("nobody waits for it")
		}
		return 1, nil
	}), nil)
	put(t, r, agent, monday)
	if r.IsBusy(agent.User) {
		t.Error("somebody waits for ever")
	}
}
