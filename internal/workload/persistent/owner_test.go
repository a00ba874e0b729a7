package persistent

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/quota"
)

// TestASandboxWithoutItsOwner takes away the token that has made one: nobody reaches it, and it ends as it would have.
func TestASandboxWithoutItsOwner(t *testing.T) {
	l := newLabOf(t)
	b := l.create(l.s, Create{Deadline: time.Now().Add(time.Hour)})
	ends := l.create(l.s, Create{})
	l.mu.Lock()
	l.left["alice"] = true
	l.mu.Unlock()
	if _, err := l.s.Any(b.ID()); !cerrdefs.IsNotFound(err) {
		t.Errorf("%v", err)
	}
	if _, err := l.s.Find(alice, b.ID()); !cerrdefs.IsNotFound(err) {
		t.Errorf("%v", err)
	}
	if _, err := l.s.Find(bob, b.ID()); !cerrdefs.IsNotFound(err) {
		t.Errorf("%v", err)
	}
	if err := ends.SetDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its deadline has come", func() bool { return !l.PersistentRuns("c-" + ends.ID()) })
	l.mu.Lock()
	l.left["alice"] = false
	l.mu.Unlock()
	if _, err := l.s.Find(alice, b.ID()); err != nil {
		t.Errorf("the token is back: %v", err)
	}
}

// runsOn has containers whose commands run until they are told to end, by pid.
type runsOn struct {
	*lab
	next int
	ends map[int]chan struct{}
}

func (r *runsOn) answers(s *yamux.Stream, q control.Request) {
	r.mu.Lock()
	switch q.Do {
	case control.Begin:
		r.next++
		q.PID = r.next
		r.ends[q.PID] = make(chan struct{})
	case control.List:
		list := append(slices.Collect(maps.Keys(r.ends)), 0)
		r.mu.Unlock()
		_ = wire.WriteMessage(s, wire.KindAnswer, control.Answer{})
		for _, pid := range list {
			_ = wire.WriteMessage(s, wire.KindEntry, control.Entry{PID: pid})
		}
		return
	}
	end := r.ends[q.PID]
	r.mu.Unlock()
	_ = wire.WriteMessage(s, wire.KindAnswer, control.Answer{PID: q.PID})
	<-end
	_ = wire.WriteMessage(s, wire.KindExit, wire.Exit{})
}

func (r *runsOn) end(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.ends[pid])
	delete(r.ends, pid)
}

// TestCommandsAreTheirOwnersUntilTheyEnd counts those that nobody follows, too, and those of an earlier service.
func TestCommandsAreTheirOwnersUntilTheyEnd(t *testing.T) {
	l := newLab(t)
	l.quotas, l.bounds = quota.New(quota.Limits{}), quota.Bounds{Commands: 2}
	l.recount = 10 * time.Millisecond
	r := &runsOn{lab: l, ends: map[int]chan struct{}{}}
	l.answer = r.answers
	s := l.open()
	b := l.create(s, Create{})
	start := func(s *Sandboxes, id string) (*Reader, error) {
		b, err := s.Any(id)
		if err != nil {
			t.Fatal(err)
		}
		return b.Start(t.Context(), Command{Argv: []string{"true"}})
	}
	full := func(s *Sandboxes, id string) bool {
		r, err := start(s, id)
		if err == nil {
			defer r.Close()
		}
		is, exceeded := errors.AsType[*quota.Exceeded](err)
		return exceeded && is.Scope == quota.OfToken && is.Name == "alice"
	}
	first, err := start(s, b.ID())
	if err != nil {
		t.Fatal(err)
	}
	second, err := start(s, b.ID())
	if err != nil {
		t.Fatal(err)
	}
	again, err := b.Follow(t.Context(), Selector{PID: first.PID()})
	if err != nil {
		t.Fatalf("to follow a command is none of its own: %v", err)
	}
	again.Close()
	first.Close()
	second.Close()
	if !full(s, b.ID()) {
		t.Error("a third command starts beside two that run and are followed by nobody")
	}
	s.Shutdown()
	l.quotas = quota.New(quota.Limits{})
	s = l.open()
	eventually(t, "the next service has counted what runs", func() bool { return l.quotas.Stats().InUse[quota.Commands] == 2 })
	if !full(s, b.ID()) {
		t.Error("a third command starts beside those that an earlier service has left")
	}
	r.end(first.PID())
	eventually(t, "a place is free", func() bool { return l.quotas.Stats().InUse[quota.Commands] == 1 })
	third, err := start(s, b.ID())
	if err != nil {
		t.Fatal(err)
	}
	r.end(third.PID())
	for e, err := third.Next(t.Context()); err == nil && e.End == nil; e, err = third.Next(t.Context()) {
	}
	third.Close()
	found, err := s.Any(b.ID())
	if err == nil {
		err = found.Kill(t.Context())
	}
	eventually(t, "all places are free", func() bool { return err == nil && l.quotas.Stats().InUse[quota.Commands] == 0 })
	if n := l.quotas.Stats().InUse[quota.Containers]; n != 0 {
		t.Errorf("%d containers", n)
	}
}

// Where the owner's token has as many containers as may be, an idle one makes room; sandboxes that there are do not.
func TestIdleContainersMakeRoomForSandboxes(t *testing.T) {
	l := newLab(t)
	l.quotas = quota.New(quota.Limits{})
	token := quota.Token{Name: "alice", Own: quota.Bounds{Containers: 2}}
	for _, user := range []string{"u", "v"} {
		l.idle = append(l.idle, l.quotas.Hold(quota.Account{User: user, Token: token}, quota.Containers, 1))
	}
	s := l.open()
	for range 2 {
		if _, err := s.Create(t.Context(), token, Create{}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.Create(t.Context(), token, Create{})
	if full, is := errors.AsType[*quota.Exceeded](err); !is || full.Scope != quota.OfToken || full.Resource != quota.Containers {
		t.Errorf("a third one beside two that go on: %v", err)
	}
	if n := l.quotas.Stats().InUse[quota.Containers]; n != 2 || len(s.All()) != 2 {
		t.Errorf("%d places are taken by %d sandboxes, not 2 by 2", n, len(s.All()))
	}
}

// TestDeadlinesHoldOnAFullDisk has no record written any more, before the deadlines come.
func TestDeadlinesHoldOnAFullDisk(t *testing.T) { synctest.Test(t, deadlinesHoldOnAFullDisk) }

func deadlinesHoldOnAFullDisk(t *testing.T) {
	l := newLab(t)
	l.quotas = quota.New(quota.Limits{})
	s := l.open()
	soon := time.Now().Add(300 * time.Millisecond)
	ends, pauses, killed := l.create(s, Create{Deadline: soon}), l.create(s, Create{Deadline: soon, OnDeadline: Pause}), l.create(s, Create{Deadline: soon.Add(2 * time.Second)})
	aside := l.records() + ".aside"
	if err := errors.Join(os.Rename(l.records(), aside), os.WriteFile(l.records(), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	_ = killed.Kill(t.Context()) // what is left cannot be forgotten yet
	eventually(t, "they have ended", func() bool {
		return !l.PersistentRuns("c-"+ends.ID()) && !l.PersistentRuns("c-"+killed.ID()) && pauses.Info().State == StatePaused && l.isPaused(pauses.ID())
	})
	synctest.Wait() // a place is given back after the end
	if n := l.quotas.Stats().InUse[quota.Containers]; n != 1 {
		t.Errorf("%d places are taken, not 1", n)
	}
	// One that goes on in memory has its deadline, whatever is on disk.
	if err := pauses.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is paused again", func() bool { return l.isPaused(pauses.ID()) })
	s.Shutdown()
	if err := errors.Join(os.Remove(l.records()), os.Rename(aside, l.records())); err != nil {
		t.Fatal(err)
	}
	s = l.open()
	eventually(t, "the next service has cleared away", func() bool { return len(s.All()) == 1 && l.isPaused(pauses.ID()) })
}

func (f *fakeEngine) isPaused(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.paused["c-"+id]
}

// TestOneSandboxDisturbsNoOther has the engine refuse what is done to one, while a service starts.
func TestOneSandboxDisturbsNoOther(t *testing.T) {
	l := newLab(t)
	s := l.open()
	bad, good, stray := l.create(s, Create{}), l.create(s, Create{}), l.create(s, Create{})
	if err := bad.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Shutdown()
	l.paused = map[string]bool{}
	refusal := errors.New("the engine refuses")
	l.refuses = map[string]error{"c-" + bad.ID(): refusal, "c-" + stray.ID(): refusal}
	if err := os.Truncate(filepath.Join(s.cfg.Dir, stray.ID()+".json"), 3); err != nil {
		t.Fatal(err)
	}
	s = l.open()
	b, err := s.Find(alice, good.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Touch(t.Context()); err != nil {
		t.Errorf("another's fault is this one's: %v", err)
	}
	if err := b.Kill(t.Context()); err != nil {
		t.Errorf("%v", err)
	}
	// The service may be looking, too.
	eventually(t, "what was refused is tried again", s.again.Load)
	l.mu.Lock()
	l.refuses = nil
	l.mu.Unlock()
	eventually(t, "nothing is left to try", func() bool {
		err := s.find(context.Background())
		return err == nil && l.isPaused(bad.ID()) && !l.PersistentRuns("c-"+stray.ID()) && !s.again.Load()
	})
}
