package dockerexec

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

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

// Processes that queue behind them are left to the next service, too.
func TestShutdownWhileProcessesQueue(t *testing.T) {
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
