package dockerexec

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// After a restart a call waits only for its own user's container, however many there are, and the others are taken
// over a few at a time.
func TestACallsContainerIsAdoptedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const users = 40
		engine := newScriptedEngine(t)
		engine.execTakes = time.Second
		for i := range users {
			engine.has(fmt.Sprintf("user-%02d", i))
		}
		e := engine.executor()
		begun := time.Now()
		e.Start(t.Context(), noProcesses{})
		defer e.Shutdown()
		if took := time.Since(begun); took != 0 {
			t.Errorf("it could be called after %v", took)
		}
		synctest.Wait()
		first := ""
		for range 2 {
			user := engine.waits(users) // whoever that is: they queue in any order
			first = cmp.Or(first, user)
			before := time.Now()
			if _, err := e.Run(t.Context(), engine.spec(user), aCommand, discard); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(before); took != time.Second {
				t.Errorf("%s waited for %v", user, took)
			}
		}
		time.Sleep(users * time.Second)
		engine.mu.Lock()
		defer engine.mu.Unlock()
		if len(engine.began) != users || engine.made != users || engine.mostExecs != adoptionsAtOnce+1 {
			t.Errorf("%d of %d were adopted, %d at a time, in the order %v", len(engine.began), engine.made, engine.mostExecs, engine.began)
		}
		if i := slices.Index(engine.began, first); i < 0 || i > adoptionsAtOnce {
			t.Errorf("%s was number %d: %v", first, i, engine.began)
		}
	})
}

// waits returns one of so many users whose container has not been taken over yet.
func (s *scriptedEngine) waits(users int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range users {
		if user := fmt.Sprintf("user-%02d", i); !slices.Contains(s.began, user) {
			return user
		}
	}
	s.t.Fatal("all are taken over")
	return ""
}

// Containers that are not adopted yet when the service ends are left to the next one.
func TestShutdownLeavesWhatItHasNotAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		engine.execTakes = time.Second
		for i := range 20 {
			engine.has(fmt.Sprintf("user-%02d", i))
		}
		e := engine.executor()
		e.Start(t.Context(), noProcesses{})
		time.Sleep(1500 * time.Millisecond)
		e.Shutdown()
		time.Sleep(time.Second) // the engine goes on
		engine.mu.Lock()
		defer engine.mu.Unlock()
		if left := len(engine.containers); left != 20 {
			t.Errorf("%d of 20 are left", left)
		}
	})
}

// Processes that queue behind them are left to the next service, too.
func TestShutdownWhileProcessesQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		engine.execTakes = time.Second
		for i := range 2 * adoptionsAtOnce {
			engine.has(fmt.Sprintf("user-%02d", i))
		}
		for i := range 2 * adoptionsAtOnce {
			spec := engine.spec("alice")
			spec.Process.ID = fmt.Sprint(i)
			engine.add(spec.labels(), "")
		}
		e := engine.executor()
		e.Start(t.Context(), noProcesses{})
		time.Sleep(500 * time.Millisecond)
		e.Shutdown()
		time.Sleep(time.Second) // the engine goes on
		engine.mu.Lock()
		defer engine.mu.Unlock()
		if left := len(engine.containers); left != 4*adoptionsAtOnce {
			t.Errorf("%d are left", left)
		}
	})
}

// slowPreparer takes a second for each container.
type slowPreparer struct{ mountPreparer }

func (p slowPreparer) Prepare(spec Spec) (Prepared, error) {
	time.Sleep(time.Second)
	return p.mountPreparer.Prepare(spec)
}

// A call may come for a container that was found paused before the host is prepared for it.
func TestACallForWhatWasJustFoundPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		engine.sleeps("alice")
		e := engine.executor()
		e.cfg.Mounts = slowPreparer{e.cfg.Mounts}
		done := make(chan error)
		go func() {
			time.Sleep(500 * time.Millisecond)
			_, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard)
			done <- err
		}()
		e.Start(t.Context(), noProcesses{})
		defer e.Shutdown()
		if err := <-done; err != nil || engine.made != 1 {
			t.Errorf("in %d containers: %v", engine.made, err)
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
		engine := newScriptedEngine(t)
		first := strings.Repeat("0", 63) + "1"
		engine.attach = func(id string, conn attachStream) {
			if id != first {
				engine.obey(conn)
				return
			}
			_, _ = conn.Write([]byte("OCI runtime exec failed: exec failed: read init-p: connection reset by peer: unknown\r\n"))
			_ = conn.Close()
		}
		engine.has("alice")
		e := engine.executor()
		e.Start(t.Context(), noProcesses{})
		defer e.Shutdown()
		if _, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard); err != nil || engine.made != 2 {
			t.Errorf("in %d containers: %v", engine.made, err)
		}
	})
}
