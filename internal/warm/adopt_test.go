package warm

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/internal/engine/enginetest"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// After a restart a call waits only for its own user's container, however many there are, and the others are taken
// over a few at a time.
func TestACallsContainerIsAdoptedFirst(t *testing.T) {
	const adoptedAtOnce = 4 // by the Executor
	synctest.Test(t, func(t *testing.T) {
		const users = 40
		engine := newLab(t)
		var names []string
		for i := range users {
			names = append(names, fmt.Sprintf("user-%02d", i))
		}
		engine.has(names...)
		execs := slowExecs(engine)
		begun := time.Now()
		e := engine.serve()
		defer e.stop()
		if took := time.Since(begun); took != 0 {
			t.Errorf("it could be called after %v", took)
		}
		synctest.Wait()
		first := ""
		for range 2 {
			user := execs.waits(t, users) // whoever that is: they queue in any order
			first = cmp.Or(first, user)
			before := time.Now()
			if _, err := e.Run(t.Context(), engine.spec(user), aCommand, discard); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(before); took != time.Second {
				t.Errorf("%s waited for %v", user, took)
			}
		}
		waittest.Pass(users * time.Second)
		execs.mu.Lock()
		defer execs.mu.Unlock()
		if len(execs.began) != users || engine.Made() != users || execs.most != adoptedAtOnce+1 {
			t.Errorf("%d of %d were adopted, %d at a time, in the order %v",
				len(execs.began), engine.Made(), execs.most, execs.began)
		}
		if i := slices.Index(execs.began, first); i < 0 || i > adoptedAtOnce {
			t.Errorf("%s was number %d: %v", first, i, execs.began)
		}
	})
}

// waits returns one of so many users whose container has not been taken over yet.
func (x *execs) waits(t *testing.T, users int) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range users {
		if user := fmt.Sprintf("user-%02d", i); !slices.Contains(x.began, user) {
			return user
		}
	}
	t.Fatal("all are taken over")
	return ""
}

// execs are those that an engine was asked for, each of which takes a second.
type execs struct {
	mu        sync.Mutex
	now, most int      // at a time
	began     []string // the users in whose containers they are
}

func slowExecs(engine *lab) *execs {
	x := &execs{}
	engine.Script(func(call enginetest.Call, do func() error) error {
		if call.Verb != "Exec" {
			return do()
		}
		x.mu.Lock()
		x.began = append(x.began, call.Container.Labels["run.daycare.sandbox.user"])
		x.now++
		x.most = max(x.most, x.now)
		x.mu.Unlock()
		time.Sleep(time.Second)
		x.mu.Lock()
		x.now--
		x.mu.Unlock()
		return do()
	})
	return x
}

// A call may come for a container that was found paused before the host is prepared for it.
func TestACallForWhatWasJustFoundPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		engine.sleep("alice")
		e := engine.service()
		defer e.stop()
		engine.mounts.before = func() { time.Sleep(time.Second) }
		done := make(chan error)
		go func() {
			time.Sleep(500 * time.Millisecond)
			_, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard)
			done <- err
		}()
		e.Executor.Start(t.Context(), engine)
		if err := <-done; err != nil || engine.Made() != 1 {
			t.Errorf("in %d containers: %v", engine.Made(), err)
		}
		if _, thawed := e.Freezes(); thawed != 1 {
			t.Errorf("%d were thawed", thawed)
		}
	})
}

// In a container that was found, the previous service's agent may still be ending all that begins: a call that meets
// this gets another container.
func TestAFoundContainerThatTakesNoAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		engine.has("alice")
		engine.Serve(func(p enginetest.Program) {
			if p.Container.ID != firstID {
				engine.obey(p)
				return
			}
			refuses(p, "OCI runtime exec failed: exec failed: read init-p: connection reset by peer")
			_ = p.Close()
		})
		e := engine.serve()
		defer e.stop()
		if _, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard); err != nil || engine.Made() != 2 {
			t.Errorf("in %d containers: %v", engine.Made(), err)
		}
	})
}
