package persistent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/durable"
	"github.com/daycare-run/sandbox/internal/quota"
)

type opened struct {
	*lab
	s *Sandboxes
}

func newLabOf(t *testing.T) opened {
	l := newLab(t)
	return opened{l, l.open()}
}

// What is on disk is there for the next service, and what is half made or half removed goes.
func TestARestart(t *testing.T) {
	l := newLab(t)
	s := l.open()
	kept := l.create(s, Create{Template: Template{Name: "base"}, Metadata: map[string]string{"a": "b"}, Note: json.RawMessage(`{"x":1}`), Deadline: time.Now().Add(time.Hour)})
	if err := kept.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	half, removing := l.create(s, Create{}), l.create(s, Create{})
	damaged := l.create(s, Create{})
	before := kept.Info()
	s.Shutdown()
	rewrite := func(id string, how func(map[string]any)) {
		t.Helper()
		var r map[string]any
		name := filepath.Join(l.records(), id+".json")
		text, err := os.ReadFile(name)
		if err = errors.Join(err, json.Unmarshal(text, &r)); err != nil {
			t.Fatal(err)
		}
		how(r)
		text, _ = json.Marshal(r)
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rewrite(half.ID(), func(r map[string]any) { r["made"] = false })
	rewrite(removing.ID(), func(r map[string]any) { r["removing"] = true })
	rewrite(damaged.ID(), func(r map[string]any) { r["version"] = 99 })
	l.paused = map[string]bool{}
	s = l.open()
	eventually(t, "what is half there has gone", func() bool { return !l.PersistentRuns("c-"+half.ID()) && !l.PersistentRuns("c-"+removing.ID()) })
	if l.PersistentRuns("c-" + damaged.ID()) {
		t.Error("a container without a record is there still")
	}
	b, err := s.Find(alice, kept.ID())
	if err != nil {
		t.Fatal(err)
	}
	if after := b.Info(); fmt.Sprint(after) != fmt.Sprint(before) || after.State != StatePaused {
		t.Errorf("%+v, and before %+v", after, before)
	}
	l.mu.Lock()
	if !l.paused["c-"+kept.ID()] {
		t.Error("it is not paused again")
	}
	l.mu.Unlock()
	eventually(t, "one is left", func() bool { return len(s.All()) == 1 })
}

// A record that is cut short anywhere is set aside, and keeps nothing from starting.
func TestRecordsCutShort(t *testing.T) {
	l := newLabOf(t)
	b := l.create(l.s, Create{Metadata: map[string]string{"a": "b"}, Note: json.RawMessage(`{}`), Deadline: time.Now().Add(time.Hour)})
	name := filepath.Join(l.records(), b.ID()+".json")
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for n := range len(whole) {
		cut := filepath.Join(dir, b.ID()+".json")
		if err := os.WriteFile(cut, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		records, err := readRecords(durable.Records{Dir: dir}, zerolog.Nop())
		if err != nil || len(records) != 0 {
			t.Fatalf("cut after %d bytes: %+v, %v", n, records, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, b.ID()+".json.damaged")); err != nil {
		t.Error(err)
	}
}

func TestDeadlines(t *testing.T) {
	l := newLabOf(t)
	killed := l.create(l.s, Create{})
	paused := l.create(l.s, Create{OnDeadline: Pause, AutoResume: true})
	stays := l.create(l.s, Create{OnDeadline: Pause})
	for _, b := range []*Sandbox{killed, paused, stays} {
		if err := b.SetDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "one is gone", func() bool { _, err := l.s.Find(alice, killed.ID()); return cerrdefs.IsNotFound(err) })
	eventually(t, "two are paused", func() bool { return paused.Info().State == StatePaused && stays.Info().State == StatePaused })
	if err := stays.Touch(t.Context()); !cerrdefs.IsFailedPrecondition(err) {
		t.Errorf("%v", err)
	}
	later := time.Now().Add(time.Hour)
	if err := stays.Connect(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	if err := stays.Connect(t.Context(), time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if now := stays.Info(); now.State != StateRunning || !now.Deadline.Equal(later) {
		t.Errorf("%+v", now)
	}
	if err := paused.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := paused.Touch(t.Context()); err != nil || paused.Info().State != StateRunning {
		t.Errorf("%v", err)
	}
	if err := killed.SetDeadline(later); !cerrdefs.IsNotFound(err) {
		t.Errorf("of one that is gone: %v", err)
	}
}

// endNow ends a sandbox that is due now and not only after a while, and reports whether that is done.
func endNow(s *Sandboxes, id string) bool {
	e := s.entry(id)
	if e == nil {
		return true
	}
	e.changing.Lock()
	defer e.changing.Unlock()
	return e.end()
}

// A sandbox whose container was lost while no service ran goes, paused or not and whenever its deadline is, with its place.
func TestLostSandboxesGo(t *testing.T) {
	l := newLab(t)
	l.quotas = quota.New(quota.Limits{})
	s := l.open()
	later := time.Now().Add(time.Hour)
	paused, running := l.create(s, Create{Deadline: later, OnDeadline: Pause}), l.create(s, Create{Deadline: later})
	forever, stays := l.create(s, Create{}), l.create(s, Create{})
	if err := paused.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Shutdown()
	for _, b := range []*Sandbox{paused, running, forever} {
		l.lose("c-" + b.ID())
	}
	l.quotas = quota.New(quota.Limits{})
	s = l.open()
	eventually(t, "those are gone", func() bool { return len(s.All()) == 1 && l.quotas.Stats().InUse[quota.Containers] == 1 })
	if _, err := s.Find(alice, stays.ID()); err != nil {
		t.Error(err)
	}
}

// One whose container is lost while the service runs goes when that is noticed, and not before Docker says so, too.
func TestOneThatEnds(t *testing.T) {
	l := newLab(t)
	l.recount = 5 * time.Millisecond
	s := l.open()
	b := l.create(s, Create{Deadline: time.Now().Add(time.Hour)})
	l.unhear("c-" + b.ID())
	if endNow(s, b.ID()) || len(s.All()) != 1 {
		t.Errorf("its container runs: %+v", s.All())
	}
	l.lose("c-" + b.ID())
	if !endNow(s, b.ID()) || len(s.All()) != 0 {
		t.Errorf("%+v", s.All())
	}
	other := l.create(s, Create{})
	l.lose("c-" + other.ID())
	eventually(t, "that is noticed", func() bool { return len(s.All()) == 0 })
}

// Whoever looks for the containers while one is being resumed does not pause it again.
func TestALookDuringAResumption(t *testing.T) {
	l := newLabOf(t)
	b := l.create(l.s, Create{})
	if err := b.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.afterResumed = func() {
		if err := l.s.find(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := b.Connect(t.Context(), time.Time{}); err != nil {
		t.Fatal(err)
	}
	paused := b.entry.recorded().Paused // before l.mu, which others take while they have an entry's
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paused["c-"+b.ID()] || paused {
		t.Error("it was paused again")
	}
}

// However many of an owner's sandboxes are due and slow to go, a part of them is ended at a time, and another's goes meanwhile.
func TestSlowRemovals(t *testing.T) {
	l := newLabOf(t)
	began, goOn := make(chan string, endsAtOnce), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	defer release()
	l.beforeRemoved = func(id string) {
		if l.owns(alice, id) {
			began <- id
			<-goOn
		}
	}
	other, err := l.s.Create(t.Context(), bob, Create{})
	if err != nil {
		t.Fatal(err)
	}
	for range endsAtOnce {
		b := l.create(l.s, Create{})
		if err := b.SetDeadline(time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	const most = endsAtOnce / 4
	eventually(t, "as many as may are being removed", func() bool { return len(began) == most })
	if err := other.SetDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another's is gone", func() bool { return len(l.s.List(bob)) == 0 })
	if n := len(began); n != most {
		t.Errorf("%d of one owner are ended at the same time", n)
	}
	release()
	eventually(t, "all are gone", func() bool { return len(l.s.entries()) == 0 })
}

// owns reports whether a container is of an owner's sandbox.
func (o opened) owns(owner quota.Token, container string) bool {
	e := o.s.entry(strings.TrimPrefix(container, "c-"))
	return e != nil && e.recorded().Owner == owner.Name
}
