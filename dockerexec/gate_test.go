package dockerexec

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/quota"
)

// anything is a Gate that lets everything start and run.
type anything struct{}

func (anything) May(string) error { return nil }

func (anything) Wanted(Spec) Wanted { return Wanted{Running: true} }

// starts is a Gate that decides what may start, and knows nothing of what was found.
type starts func(user string) error

func (s starts) May(user string) error { return s(user) }

func (starts) Wanted(Spec) Wanted { return Wanted{} }

// found is a Gate that decides about what was found, and lets nothing start.
type found func(Spec) Wanted

func (found) May(string) error { return cerrdefs.ErrUnavailable }

func (f found) Wanted(spec Spec) Wanted { return f(spec) }

// present are platforms of which one is present.
type present func() (Platform, error)

func (p present) Current(context.Context) (Platform, error) { return p() }

func (present) Forget() {}

// always is a platform that stays.
func always(p Platform) present { return func() (Platform, error) { return p, nil } }

// Nothing starts before it is known what may, and nothing that was found reaches or resumes anything.
func TestWithoutAGateNothingMayStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		e := engine.executor()
		defer e.Shutdown()
		e.gate.Store(nil)
		if err := e.run(t.Context(), engine.spec("alice")); !cerrdefs.IsUnavailable(err) {
			t.Errorf("a command: %v", err)
		}
		if _, err := e.StartProcess(t.Context(), engine.spec("alice"), quota.Token{}); !cerrdefs.IsUnavailable(err) {
			t.Errorf("a process: %v", err)
		}
		if _, err := e.NewPoolUser(); !cerrdefs.IsUnavailable(err) {
			t.Errorf("the pool: %v", err)
		}
		spec := Spec{Persistent: "s1", Egress: Egress{Profile: "isolated", Domains: []string{"*"}}}
		if reach := e.reachOf(spec); reach.Profile != "isolated" || len(reach.Domains) > 0 {
			t.Errorf("a persistent container reaches %+v", reach)
		}
		if e.wanted(spec).Running {
			t.Error("it would be resumed")
		}
	})
}

// The home of a user whom another host may have by now is left as it is.
func TestTheHomeOfALostUserIsLeftAsItIs(t *testing.T) {
	for lost, want := range map[bool]string{false: "[prepare alice release alice]", true: "[prepare alice forget alice]"} {
		synctest.Test(t, func(t *testing.T) {
			engine := newScriptedEngine(t)
			e := engine.executor()
			defer e.Shutdown()
			made := engine.startPersistent(t, e)
			if lost {
				e.gate.Store(new(Gate(starts(func(string) error { return cerrdefs.ErrUnavailable }))))
			}
			if err := e.RemoveProcess(t.Context(), made.ID); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if got := fmt.Sprint(e.cfg.Mounts.(*preparerLog).calls); got != want {
				t.Errorf("lost: %t: %s, want %s", lost, got, want)
			}
		})
	}
}

// A persistent container that was found reaches what its sandbox's record says, on its own network alone.
func TestAFoundContainerReachesWhatIsWanted(t *testing.T) {
	spec := Spec{Persistent: "s1", Egress: Egress{Profile: "isolated", Domains: []string{"*"}}}
	e := newScriptedEngine(t).executor()
	defer e.Shutdown()
	for _, tt := range []struct {
		wanted *Egress
		want   []string
	}{
		{nil, nil},
		{&Egress{Profile: "isolated", Domains: []string{"a.test"}}, []string{"a.test"}},
		{&Egress{Profile: "local", Domains: []string{"a.test"}}, nil},
		{&Egress{Domains: []string{"a.test"}}, nil},
	} {
		e.gate.Store(new(Gate(found(func(Spec) Wanted { return Wanted{Reach: tt.wanted} }))))
		if got := e.reachOf(spec); got.Profile != "isolated" || !slices.Equal(got.Domains, tt.want) {
			t.Errorf("%+v: %+v", tt.wanted, got)
		}
	}
}

// What is told while nobody receives is neither lost nor waited for.
func TestChangesBecomeOneUntilTheyAreReceived(t *testing.T) {
	e := newScriptedEngine(t).executor()
	defer e.Shutdown()
	for _, what := range []Changes{
		{Ended: map[string]bool{"a": true}}, {Compared: true}, {Ended: map[string]bool{"b": true}}, {Ended: map[string]bool{"a": true}},
	} {
		e.changes.tell(what)
	}
	got := <-e.Changes()
	if !got.Compared || !slices.Equal(slices.Sorted(maps.Keys(got.Ended)), []string{"a", "b"}) {
		t.Errorf("%+v", got)
	}
	e.changes.tell(Changes{Ended: map[string]bool{"c": true}})
	if got := <-e.Changes(); got.Compared || !got.Ended["c"] || len(got.Ended) != 1 {
		t.Errorf("%+v", got)
	}
	select {
	case got := <-e.Changes():
		t.Errorf("nothing has changed: %+v", got)
	default:
	}
}

// The end of a process's container is told, and each comparison.
func TestEndsAndComparisonsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		spec := engine.spec("alice")
		spec.Process = Process{ID: "p1"}
		id := engine.add(spec)
		e := engine.executor()
		defer e.Shutdown()
		received := make(chan struct{}) // or two comparisons become one
		engine.script(func(do func() error) error { <-received; return do() }, "Events")
		e.Start(t.Context(), anything{})
		if got := <-e.Changes(); !got.Compared || len(got.Ended) > 0 {
			t.Errorf("at the start: %+v", got)
		}
		close(received)
		if got := <-e.Changes(); !got.Compared { // Docker's events begin
			t.Errorf("then: %+v", got)
		}
		engine.Lose(id, true)
		if got := <-e.Changes(); got.Compared || !got.Ended["p1"] {
			t.Errorf("after an end: %+v", got)
		}
		if err := e.Reconcile(t.Context()); err != nil || !(<-e.Changes()).Compared {
			t.Errorf("a comparison is not told, %v", err)
		}
	})
}
