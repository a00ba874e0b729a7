package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// preparerLog is a mountPreparer that remembers what it was asked.
type preparerLog struct {
	mu    sync.Mutex
	calls []string
}

func (g *preparerLog) note(call string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls = append(g.calls, call)
}

func (g *preparerLog) Prepare(s Spec) (Prepared, error) {
	g.note("prepare " + s.User)
	return Prepared{}, nil
}
func (g *preparerLog) Release(s Spec)                                     { g.note("release " + s.User) }
func (g *preparerLog) Forget(spec Spec)                                   { g.note("forget " + spec.User) }
func (g *preparerLog) Follow(context.Context, Spec, []string, func(News)) {}
func (g *preparerLog) Rebind(from, to Spec) error                         { g.note("rebind " + from.User); return nil }

// errNotNow is the engine's, of what it does not do in a test.
var errNotNow = errors.New("not now")

// refusing is an engine that refuses everything but some verbs.
func refusing(t *testing.T, but ...string) *enginetest.Engine {
	e := enginetest.New(t.Context())
	e.Script(func(call enginetest.Call, do func() error) error {
		if slices.Contains(but, call.Verb) {
			return do()
		}
		return errNotNow
	})
	return e
}

// A comparison that has failed is made again, although Docker's events have begun and go on.
func TestAComparisonThatFailsIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		id := engine.add(engine.persistentSpec("alice"))
		engine.fails(3)
		e := engine.executor()
		e.Start(t.Context(), anything{})
		defer e.Shutdown()
		waittest.Pass(compareAgain + time.Second)
		if e.runningDetached(id) != nil {
			t.Fatal("found in spite of the engine")
		}
		waittest.Pass(compareAgain)
		if e.runningDetached(id) == nil {
			t.Error("it was not found when the engine listed it again")
		}
	})
}

// A container that is listed while this service starts it is not taken over as well: what it has is given back once.
func TestAComparisonDuringAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		e := engine.executor()
		defer e.Shutdown()
		engine.script(func(do func() error) error {
			return errors.Join(do(), e.Reconcile(t.Context()))
		}, "Start")
		spec := engine.persistentSpec("alice")
		made, err := e.StartPersistent(t.Context(), spec, quota.Token{})
		if err == nil {
			err = e.RemoveProcess(t.Context(), made.ID)
		}
		synctest.Wait()
		if got := fmt.Sprint(e.cfg.Mounts.(*preparerLog).calls); err != nil || got != "[prepare alice release alice]" {
			t.Errorf("%s, %v", got, err)
		}
	})
}

// A container that runs without the service, and ends while Docker's events are interrupted, is given up with all that it had.
func TestUnheardEndReleasesAll(t *testing.T) {
	for kind, change := range map[string]func(*Spec){
		"persistent": func(s *Spec) { s.Persistent = "s1" },
		"process":    func(s *Spec) { s.Process = Process{ID: "p1", Dir: s.SpoolDir} },
	} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := newScriptedEngine(t)
				e := engine.executor()
				defer e.Shutdown()
				spec := engine.spec("alice")
				change(&spec)
				id := engine.add(spec)
				for _, runs := range []bool{true, false} {
					if !runs {
						engine.Lose(id, false)
					}
					if err := e.Reconcile(t.Context()); err != nil || e.PersistentRuns(id) != runs {
						t.Errorf("it runs: %t, and was taken for one that does: %t, %v", runs, e.PersistentRuns(id), err)
					}
				}
				synctest.Wait()
				if got := fmt.Sprint(e.cfg.Mounts.(*preparerLog).calls); got != "[prepare alice release alice]" {
					t.Error(got)
				}
			})
		})
	}
}

// The end of a detached container leaves its /tmp, which Docker does not remove while the container
// is there. It goes with the container.
func TestTmpGoesWithItsContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		e := engine.executor()
		defer e.Shutdown()
		e.Start(t.Context(), anything{})
		made := engine.startPersistent(t, e)
		var asked atomic.Int64
		engine.Script(func(call enginetest.Call, do func() error) error {
			if call.Verb == "RemoveVolume" {
				asked.Add(1)
			}
			return do()
		})
		engine.End(made.ID, 1, false)
		waittest.Pass(time.Minute)
		if n := asked.Load(); n != 0 {
			t.Errorf("Docker was asked %d times", n)
		}
		err := e.RemoveProcess(t.Context(), made.ID)
		tmp := engine.persistentSpec("alice").tmpName()
		if _, there := engine.FindVolume(t.Context(), tmp); err != nil || there == nil {
			t.Errorf("it is still there: %v", err)
		}
	})
}

// While the platform is not known, what runs is known all the same, and nothing is stale. Before that nothing is known to have ended.
func TestRunningContainersAreKnownWithoutAPlatform(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		e := engine.executor()
		unknown := errors.New("the image is not there")
		e.cfg.Platforms = present(func() (Platform, error) { return Platform{}, unknown })
		defer e.Shutdown()
		id := engine.add(engine.persistentSpec("alice"))
		engine.sleeps("bob")
		if !e.PersistentRuns(id) {
			t.Error("it was taken for one that has ended")
		}
		if err := e.Reconcile(t.Context()); !errors.Is(err, unknown) {
			t.Error(err)
		}
		if !e.PersistentRuns(id) || e.PersistentRuns("another") {
			t.Error("what runs is not known")
		}
		stream, err := e.AskPersistent(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Close()
		synctest.Wait()
		if len(engine.Containers()) != 2 || len(e.calls) != 1 {
			t.Errorf("%d containers are left, and %d of users are known", len(engine.Containers()), len(e.calls))
		}
	})
}

// What one container needs on the host may be released with another that is given up, so all adopted containers must
// be known before the first can fail.
func TestAdoptedContainersAreLaidBeforeOneIsCleared(t *testing.T) {
	const users = 20
	docker := refusing(t, "List", "Remove")
	platform := Platform{Instance: "test"}
	for i := range users {
		spec := Spec{Platform: platform, User: string(rune('a' + i))}
		docker.Add(engine.Container{Labels: spec.labels()})
	}
	preparer := &preparerLog{}
	e := New(docker, Config{
		Instance: "test", Mounts: preparer, Log: zerolog.Nop(), Platforms: always(platform),
	})
	_ = e.Reconcile(t.Context()) // the engine cannot list volumes
	e.work.Wait()
	e.Shutdown()
	prepared := 0
	for i, call := range preparer.calls {
		switch {
		case strings.HasPrefix(call, "prepare "):
			prepared++
		case prepared < users:
			t.Fatalf("call %d is %q after %d of %d were prepared", i, call, prepared, users)
		}
	}
	if len(preparer.calls) != 2*users {
		t.Errorf("%d calls instead of %d: %v", len(preparer.calls), 2*users, preparer.calls)
	}
}

// A process that somebody takes off its network goes on, and its masks stay; a container of calls is of no use then.
func TestContainersThatAreTakenOffTheirNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		spec := engine.spec("alice")
		spec.Process = Process{ID: "p1", Dir: spec.SpoolDir}
		ids := []string{engine.add(spec), engine.has("bob")}
		e := engine.executor()
		e.Start(t.Context(), anything{})
		defer e.Shutdown()
		synctest.Wait()
		for _, id := range ids {
			engine.Disconnect(id)
		}
		synctest.Wait()
		if log := e.cfg.Mounts.(*preparerLog); e.runningDetached(ids[0]) == nil || slices.Contains(log.calls, "release alice") {
			t.Errorf("the process's container is given up: %v", log.calls)
		}
		if left := e.list(); len(left) != 0 {
			t.Errorf("that of calls is there: %v", left)
		}
	})
}
