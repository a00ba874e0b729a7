package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// What hides files from containers is there for as long as their programs run.

// releases are Mounts that note how many containers Docker has at each release, and refuse to prepare as long as refuse says.
type releases struct {
	engine *scriptedEngine
	refuse func(try int) error
	tries  int

	mu      sync.Mutex
	running []int
}

func (r *releases) Prepare(Spec) (Prepared, error) {
	if r.tries++; r.refuse != nil {
		return Prepared{}, r.refuse(r.tries)
	}
	return Prepared{}, nil
}

func (r *releases) Release(Spec) {
	r.mu.Lock()
	defer r.mu.Unlock()
	running := 0
	for _, c := range r.engine.Containers() {
		if c.Runs() {
			running++
		}
	}
	r.running = append(r.running, running)
}

func (r *releases) Forget(spec Spec) { r.Release(spec) }

func (r *releases) Follow(context.Context, Spec, []string, func(News)) {}

func (r *releases) Rebind(Spec, Spec) error { return nil }

// requireOne requires one release, with no container there.
func (r *releases) requireOne(t *testing.T) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if got := fmt.Sprint(r.running); got != "[0]" {
		t.Errorf("released while so many containers were there: %s", got)
	}
}

func TestNothingIsReleasedWhileProgramsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		e := engine.executor()
		mounts := &releases{engine: engine}
		e.cfg.Mounts = mounts
		defer e.Shutdown()
		made := engine.startPersistent(t, e)
		if err := e.RemoveProcess(t.Context(), made.ID); err != nil {
			t.Fatal(err)
		}
		mounts.requireOne(t)
	})
}

// A process's container that was found and cannot be watched ends; while its storage does not answer, preparing is tried again.
func TestAFoundProcessIsPreparedOrEnds(t *testing.T) {
	for name, scene := range map[string]struct {
		refuse func(try int) error
		there  bool
	}{
		"never": {func(int) error { return errors.New("cannot be watched") }, false},
		"once its storage answers": {func(try int) error {
			if try < 4 {
				return fmt.Errorf("the home does not answer: %w", cerrdefs.ErrUnavailable)
			}
			return nil
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := newScriptedEngine(t)
				first := engine.executor()
				made := engine.startPersistent(t, first)
				first.Shutdown()
				e := engine.executor()
				mounts := &releases{engine: engine, refuse: scene.refuse}
				e.cfg.Mounts = mounts
				e.Start(t.Context(), anything{})
				defer e.Shutdown()
				waittest.Pass(time.Minute)
				now, _ := engine.Find(made.ID)
				there := now.Runs()
				why := ""
				if c := e.known(made.ID); c != nil && c.because.Load() != nil {
					why = *c.because.Load()
				}
				if strings.Contains(why, "cannot be watched") == scene.there {
					t.Errorf("it ended because %q", why)
				}
				if there != scene.there {
					t.Errorf("is there: %t, after %d tries to prepare it", there, mounts.tries)
				}
				if there {
					if err := e.RemoveProcess(t.Context(), made.ID); err != nil {
						t.Error(err)
					}
					mounts.requireOne(t)
				}
			})
		})
	}
}
