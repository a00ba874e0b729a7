package warm

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// planned is a plan that comes to this Spec.
func planned(spec dockerexec.Spec) func(context.Context, func(dockerexec.Spec)) error {
	return func(_ context.Context, make func(dockerexec.Spec)) error {
		make(spec)
		return nil
	}
}

// TestWarmIsThereBeforeTheCall has a container made that the next call finds, and none a second time.
func TestWarmIsThereBeforeTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		e := engine.serve()
		defer e.stop()
		e.Warm("bob", quota.Token{}, func(context.Context, func(dockerexec.Spec)) error { return errors.New("no home") })
		for range 2 {
			e.Warm("alice", quota.Token{}, planned(engine.spec("alice")))
			synctest.Wait()
		}
		if list := e.Containers(); len(list) != 1 || list[0].State != "idle" || list[0].User != "alice" {
			t.Fatalf("%+v", list)
		}
		result, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard)
		if err != nil || result.Cold || engine.Made() != 1 {
			t.Errorf("%+v, %v, %d were made", result, err, engine.Made())
		}
		if len(e.warming) != 0 {
			t.Errorf("still on their way: %v", e.warming)
		}
	})
}

// TestCallsGoBeforeWarm asks for containers that nobody wants yet, then calls: for another one, and for the last of them.
func TestCallsGoBeforeWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		engine.quotas = quota.New(quota.Limits{Total: quota.Bounds{ColdStarts: 1}})
		e := engine.serve()
		defer e.stop()
		done, err := engine.quotas.Turn(t.Context(), quota.Account{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 4 {
			e.Warm(fmt.Sprint("warm-", i), quota.Token{}, planned(engine.spec(fmt.Sprint("warm-", i))))
			synctest.Wait()
		}
		for _, user := range []string{"called", "warm-3"} {
			go func() {
				if _, err := e.Run(t.Context(), engine.spec(user), aCommand, discard); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		done()
		synctest.Wait()
		var made []string
		for _, c := range engine.Containers() {
			made = append(made, c.Labels["run.daycare.sandbox.user"])
		}
		if got := fmt.Sprint(made); got != "[called warm-3 warm-0 warm-1 warm-2]" {
			t.Error(got)
		}
	})
}

// TestWarmIsBounded has one user ask for too many.
func TestWarmIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		engine.quotas = quota.New(quota.Limits{Total: quota.Bounds{ColdStarts: 1}})
		e := engine.serve()
		done, err := engine.quotas.Turn(t.Context(), quota.Account{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 * maxWarming {
			spec := engine.spec("alice")
			spec.Passwd = fmt.Sprint(i)
			e.Warm("alice", quota.Token{}, planned(spec))
		}
		e.Warm("bob", quota.Token{}, planned(engine.spec("bob")))
		synctest.Wait()
		if len(e.ForCalls()) != maxWarming+1 || e.warming["bob"] != 1 {
			t.Errorf("%d wait to be made, for %v", len(e.ForCalls()), e.warming)
		}
		e.stop()
		done()
		if engine.Made() != 0 || len(e.ForCalls())+len(e.warming) != 0 {
			t.Errorf("%d were made, %d wait", engine.Made(), len(e.ForCalls()))
		}
	})
}

// A container that is expelled while no call waits for it yet does not delay the next one, and is removed when its turn has come.
func TestExpelOfWhatIsWarmedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		engine.quotas = quota.New(quota.Limits{Total: quota.Bounds{ColdStarts: 2}})
		e := engine.serve()
		defer e.stop()
		busy, err := engine.quotas.Turn(t.Context(), quota.Account{})
		if err != nil {
			t.Fatal(err)
		}
		defer busy()
		e.Warm("alice", quota.Token{}, planned(engine.spec("alice")))
		synctest.Wait()
		e.Expel(engine.spec("alice").Fingerprint())
		waittest.Pass(2 * time.Minute)
		if list := e.Containers(); len(list) != 0 {
			t.Errorf("%+v", list)
		}
	})
}

// A container that Docker is still creating when the service ends is removed, not left to the next service.
func TestShutdownWhileAContainerIsCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		engine.takes(2*time.Second, "Create")
		e := engine.serve()
		e.Warm("alice", quota.Token{}, planned(engine.spec("alice")))
		synctest.Wait()
		e.stop()
		waittest.Pass(time.Minute) // Docker goes on
		if engine.Made() != 1 || len(engine.Containers()) != 0 {
			t.Errorf("of %d that were made %d are left", engine.Made(), len(engine.Containers()))
		}
	})
}
