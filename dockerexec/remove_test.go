package dockerexec

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
)

// A caller that removes a container that is being removed waits for that, and asks Docker for
// nothing: Docker 20.10 may then forget the name and keep the rest for good.
func TestOneContainerIsRemovedOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		docker := enginetest.New(t.Context())
		var mu sync.Mutex
		removing := map[string]bool{}
		removals, clashes := 0, 0
		docker.Script(func(call enginetest.Call, do func() error) error {
			if call.Verb != "Remove" {
				return do()
			}
			mu.Lock()
			removals++
			if removing[call.Name] {
				clashes++
			}
			removing[call.Name] = true
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			delete(removing, call.Name)
			mu.Unlock()
			return do()
		})
		docker.Add(engine.Container{ID: "one"})
		docker.Add(engine.Container{ID: "another"})
		e := &Executor{engine: docker, ctx: t.Context()}
		var callers sync.WaitGroup
		for i := range 6 {
			callers.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				id := []string{"one", "another"}[i%2]
				// As a call that replaces it, the end of its session, and whoever removes a sandbox
				// do.
				remove := []func() error{
					func() error { return e.removeFound(id, "") },
					func() error { return e.removeContainer(id) },
					func() error { return e.RemoveProcess(t.Context(), id) },
				}[i/2]
				if err := remove(); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if removing[id] {
					t.Errorf("%s is still being removed", id)
				}
			})
		}
		callers.Wait()
		if clashes != 0 || removals != 2 {
			t.Errorf("of 2 containers %d removals were asked for, %d of them while there was one",
				removals, clashes)
		}
	})
}

// The record of a container that cannot be removed is still needed.
func TestWhatIsNotRemovedKeepsItsRecord(t *testing.T) {
	engine := newScriptedEngine(t)
	e := engine.executor()
	e.bound["c"] = poolRecord{Container: "c"}
	engine.script(func(func() error) error { return errNotNow }, "Remove")
	if err := e.removeFound("c", ""); err == nil || len(e.bound) != 1 {
		t.Errorf("%v, %d records", err, len(e.bound))
	}
}
