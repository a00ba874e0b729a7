package dockerexec

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// Containers that are not adopted yet when the service ends are left to the next one.
func TestShutdownLeavesWhatItHasNotAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		engine.takes(time.Second, "Exec")
		for i := range 20 {
			engine.has(fmt.Sprintf("user-%02d", i))
		}
		e := engine.executor()
		e.Start(t.Context(), anything{})
		waittest.Pass(1500 * time.Millisecond)
		e.Shutdown()
		waittest.Pass(time.Second) // the engine goes on
		if left := len(engine.Containers()); left != 20 {
			t.Errorf("%d of 20 are left", left)
		}
	})
}

// Processes are left to the next service, too, while others queue.
func TestShutdownLeavesProcessesToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		engine.takes(time.Second, "Exec")
		for i := range 2 * adoptionsAtOnce {
			engine.has(fmt.Sprintf("user-%02d", i))
		}
		for i := range 2 * adoptionsAtOnce {
			spec := engine.spec("alice")
			spec.Process.ID = fmt.Sprint(i)
			engine.add(spec)
		}
		e := engine.executor()
		e.Start(t.Context(), anything{})
		waittest.Pass(500 * time.Millisecond)
		e.Shutdown()
		waittest.Pass(time.Second) // the engine goes on
		if left := len(engine.Containers()); left != 4*adoptionsAtOnce {
			t.Errorf("%d are left", left)
		}
	})
}

// A call that joins a container that was found paused, just as the service shuts down, is told so:
// nobody takes the container over any more.
func TestShutdownBeforeATakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		engine.sleeps("alice")
		e := engine.executor()
		e.Start(t.Context(), anything{})
		spec := engine.spec("alice")
		c, added, err := e.Add(spec, spec.Platform, quota.Token{})
		if err != nil || added {
			t.Fatal(added, err)
		}
		from, thawing, err := c.Join(1)
		if err != nil {
			t.Fatal(err)
		}
		e.Shutdown()
		e.Thaw(c, from, thawing)
		select {
		case <-c.Settled():
		default:
			t.Fatal("the call waits for good")
		}
		if now := c.Now(); now.State != life.Gone || !errors.Is(now.Why, ErrStopping) {
			t.Errorf("%v: %v", now.State, now.Why)
		}
		if len(engine.Containers()) != 1 || len(engine.Calls("Resume", "Remove")) != 0 {
			t.Error("the next service does not find it as it was")
		}
	})
}

// silent are Mounts of which those of one user do not answer.
type silent struct {
	mountPreparer
	user string
}

func (m silent) Prepare(s Spec) (Prepared, error) {
	if s.User == m.user {
		return Prepared{}, fmt.Errorf("no answer: %w", cerrdefs.ErrUnavailable)
	}
	return m.mountPreparer.Prepare(s)
}

// Processes on storage that does not answer hold up no other one.
func TestAUsersStorageHoldsUpNoOtherTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		docker := newScriptedEngine(t)
		for i := range 10 * adoptionsAtOnce {
			spec := docker.spec("mallory")
			spec.Process.ID = fmt.Sprint(i)
			docker.add(spec)
		}
		spec := docker.spec("alice")
		spec.Process.ID = "hers"
		docker.Add(engine.Container{State: engine.Paused, Labels: spec.labels()})
		e := docker.executor()
		e.cfg.Mounts = silent{e.cfg.Mounts, "mallory"}
		e.Start(t.Context(), anything{})
		defer e.Shutdown()
		synctest.Wait()
		if got := docker.pauses(); !slices.Equal(got, []string{"Resume alice"}) {
			t.Errorf("%q", got)
		}
	})
}
