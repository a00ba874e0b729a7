package warm

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/internal/engine/enginetest"
)

// A caller that asks what containers use waits only for a while for a Docker that does not answer, and no longer than it wants.
func TestUsagesOfASilentDocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		engine.Script(func(call enginetest.Call, do func() error) error {
			if call.Verb != "Usage" {
				return do()
			}
			<-call.Context.Done() // for good
			return call.Context.Err()
		})
		e := engine.serve()
		defer e.stop()
		engine.run(t, e, "alice")
		ask := func(ctx context.Context, want time.Duration) {
			begun := time.Now()
			if all := e.Usages(ctx); len(all) > 0 || time.Since(begun) != want {
				t.Errorf("%v after %v, not %v", all, time.Since(begun), want)
			}
		}
		first := make(chan struct{})
		go func() {
			defer close(first)
			ask(t.Context(), statsLimit)
		}()
		synctest.Wait()
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ask(impatient, time.Second)
		<-first
		ask(t.Context(), 0)
	})
}
