package dockerexec

import (
	"fmt"
	"testing"
	"testing/synctest"

	cerrdefs "github.com/containerd/errdefs"
)

// TestNothingStartsWithoutASeat has a host lose its user before Docker is asked to start a container, and meanwhile.
func TestNothingStartsWithoutASeat(t *testing.T) {
	for refused := 1; refused <= 2; refused++ {
		synctest.Test(t, func(t *testing.T) {
			engine := newScriptedEngine(t)
			e := engine.executor()
			defer e.Shutdown()
			asked := 0
			e.cfg.MayStart = func(user string) error {
				if user != "alice" || e.Starting() != 1 {
					t.Errorf("asked about %q while %d are started", user, e.Starting())
				}
				if asked++; asked >= refused {
					return fmt.Errorf("it is another host's: %w", cerrdefs.ErrUnavailable)
				}
				return nil
			}
			if _, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard); !cerrdefs.IsUnavailable(err) {
				t.Errorf("%v", err)
			}
			synctest.Wait()
			if len(engine.containers) != 0 || e.Starting() != 0 {
				t.Errorf("%d containers are left, %d are started", len(engine.containers), e.Starting())
			}
		})
	}
}
