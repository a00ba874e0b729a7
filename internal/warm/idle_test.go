package warm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
	"github.com/daycare-run/sandbox/internal/waittest"
)

func TestAnIdleContainerIsFrozenUntilTheNextCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		e := engine.freezing()
		defer e.stop()
		for round := range 3 {
			begun := time.Now()
			engine.run(t, e, "alice")
			if took := time.Since(begun); took != 0 || e.states() != "alice idle" {
				t.Errorf("round %d: after %v: %s", round, took, e.states())
			}
			waittest.Pass(20 * time.Second)
			if e.states() != "alice idle" {
				t.Errorf("round %d: too early: %s", round, e.states())
			}
			waittest.Pass(20 * time.Second)
			if e.states() != "alice frozen" {
				t.Errorf("round %d: %s", round, e.states())
			}
		}
		if frozen, thawed := e.Freezes(); engine.Made() != 1 || frozen != 3 || thawed != 2 || len(engine.pauses()) != 5 {
			t.Errorf("%d containers, %d frozen, %d thawed, %v", engine.Made(), frozen, thawed, engine.pauses())
		}
		e.SetIdle(Idle{RemoveAfter: 10 * time.Minute})
		waittest.Pass(9 * time.Minute)
		if e.states() != "alice frozen" {
			t.Errorf("before its time: %s", e.states())
		}
		waittest.Pass(2 * time.Minute)
		if e.states() != "" || len(engine.Containers()) != 0 || engine.spools() != "" {
			t.Errorf("after its time: %s, %s", e.states(), engine.spools())
		}
	})
}

// One that is used is not frozen, and a call that comes while it is being frozen is served.
func TestACallDuringTheFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		engine.takes(time.Second, "Pause", "Resume")
		e := engine.freezing()
		defer e.stop()
		c, _, err := e.acquire(t.Context(), engine.spec("alice"), aCommand.Token)
		if err != nil {
			t.Fatal(err)
		}
		waittest.Pass(time.Hour)
		if e.states() != "alice busy" || len(engine.pauses()) != 0 {
			t.Errorf("%s: %v", e.states(), engine.pauses())
		}
		e.release(c)
		for e.states() != "alice frozen" {
			waittest.Pass(10 * time.Millisecond)
		}
		begun := time.Now()
		for range 3 {
			engine.run(t, e, "alice")
		}
		if took := time.Since(begun); took > 2*time.Second || engine.Made() != 1 {
			t.Errorf("after %v in %d containers", took, engine.Made())
		}
	})
}

// One that is used while it waits in the line of those that are to be frozen is not frozen in its turn.
func TestACallBeforeTheFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		engine.takes(time.Second, "Pause", "Resume")
		e := engine.serve()
		defer e.stop()
		users := []string{"a", "b", "c"}
		for _, user := range users {
			engine.run(t, e, user)
			waittest.Pass(time.Second)
		}
		done := make(chan struct{})
		go func() { e.freezeUnused(func(*dockerexec.Container) bool { return true }); close(done) }()
		synctest.Wait() // a and b are being paused, as many as are at a time
		engine.run(t, e, users[freezesAtOnce])
		<-done
		begun := time.Now()
		engine.run(t, e, "c")
		if took := time.Since(begun); took != 0 || e.states() != "a frozen, b frozen, c idle" {
			t.Errorf("after %v: %s", took, e.states())
		}
	})
}

// A container that cannot be resumed is ended. Its agent may have had the command by then, so the command is not begun
// again, and the call says what Docker said; the next call gets another container.
func TestAContainerThatStaysFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		e := engine.freezing()
		defer e.stop()
		engine.run(t, e, "alice")
		waittest.Pass(time.Minute)
		engine.Script(func(call enginetest.Call, do func() error) error {
			if call.Verb != "Resume" {
				return do()
			}
			time.Sleep(time.Second) // the command has been sent by then
			engine.End(call.Name, 137, false)
			return errors.New("cannot unpause")
		})
		_, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard)
		if !errors.Is(err, session.ErrBroken) || !strings.Contains(err.Error(), "cannot unpause") || engine.Made() != 1 {
			t.Errorf("in %d containers: %v", engine.Made(), err)
		}
		engine.run(t, e, "alice")
		if engine.Made() != 2 {
			t.Errorf("the next call: in %d containers", engine.Made())
		}
	})
}

// A call proceeds when its agent answers, and not when Docker has answered; a command's time begins when it may run.
func TestACallGoesOnWhenTheAgentAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		engine.script(func(do func() error) error {
			defer time.Sleep(3 * time.Second)
			return do()
		}, "Resume")
		e := engine.freezing()
		defer e.stop()
		engine.run(t, e, "alice")
		waittest.Pass(time.Minute)
		begun := time.Now()
		engine.run(t, e, "alice")
		if took := time.Since(begun); took != 0 {
			t.Errorf("it took %v", took)
		}
		engine.run(t, e, "alice") // and the next one while Docker has yet to answer
		if _, thawed := e.Freezes(); engine.Made() != 1 || thawed != 1 {
			t.Errorf("%d containers, %d thawed", engine.Made(), thawed)
		}
		waittest.Pass(time.Minute)
		engine.takes(2*time.Second, "Pause", "Resume")
		short := aCommand
		short.Timeout = time.Second
		if result, err := e.Run(t.Context(), engine.spec("alice"), short, discard); err != nil || result.TimedOut {
			t.Errorf("its time has passed before it began: %+v, %v", result, err)
		}
	})
}

// A caller that gives up while a container resumes leaves it to the next call.
func TestACallThatGivesUpWhileAContainerThaws(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		e := engine.freezing()
		defer e.stop()
		engine.run(t, e, "alice")
		waittest.Pass(time.Minute)
		engine.takes(3*time.Second, "Pause", "Resume")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := e.Run(ctx, engine.spec("alice"), aCommand, discard); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		engine.run(t, e, "alice")
		if engine.Made() != 1 || len(engine.pauses()) != 2 {
			t.Errorf("%d containers, %v", engine.Made(), engine.pauses())
		}
	})
}

// After a restart a frozen container sleeps until it is used, however many there are.
func TestFrozenContainersSleepOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const users = 40
		engine := newLab(t)
		var names []string
		for i := range users {
			names = append(names, fmt.Sprintf("user-%02d", i))
		}
		ids := engine.sleep(names...)
		e := engine.freezing()
		waittest.Pass(10 * time.Minute)
		if len(engine.users("Exec")) != 0 || len(engine.pauses()) != 0 || strings.Count(e.states(), "frozen") != users {
			t.Errorf("%d were taken over: %v, %s", len(engine.users("Exec")), engine.pauses(), e.states())
		}
		engine.run(t, e, "user-07")
		if got := strings.Join(append(engine.pauses(), engine.users("Exec")...), ", "); got != "Resume user-07, user-07" || engine.Made() != users {
			t.Errorf("%s, of %d", got, engine.Made())
		}
		// What goes behind our back is known, and what is to go does.
		engine.Lose(ids[1], true)
		e.Expel(engine.spec("user-02").Fingerprint())
		synctest.Wait()
		if left := len(e.Containers()); left != users-2 || len(engine.Containers()) != users-2 {
			t.Errorf("%d are left of %d", left, len(engine.Containers()))
		}
		engine.Lose(ids[3], false)
		if err := e.Reconcile(t.Context()); err != nil || len(e.Containers()) != users-3 {
			t.Errorf("%d are left: %v", len(e.Containers()), err)
		}
		for _, user := range []string{"user-01", "user-02", "user-03"} {
			engine.run(t, e, user)
		}
		e.stop()
		if left := len(engine.Containers()); left != users {
			t.Errorf("the next service finds %d", left)
		}
	})
}

// Those that were used longest ago make room.
func TestTooManyIdleContainers(t *testing.T) {
	for name, idle := range map[string]Idle{
		"many":      {RemoveAfter: time.Hour, MaxContainers: 3},
		"no memory": {RemoveAfter: time.Hour, MinFreeMemory: 1 << 61},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := newLab(t)
				e := engine.freezing()
				defer e.stop()
				for _, user := range []string{"a", "b", "c", "d", "e"} {
					engine.run(t, e, user)
					waittest.Pass(time.Second)
				}
				engine.run(t, e, "a")
				busy, _, err := e.acquire(t.Context(), engine.spec("b"), aCommand.Token)
				if err != nil {
					t.Fatal(err)
				}
				defer e.release(busy)
				e.SetIdle(idle)
				waittest.Pass(time.Minute)
				want := "a idle, b busy, d idle, e idle"
				if idle.MinFreeMemory > 0 {
					want = "b busy"
				}
				if e.states() != want {
					t.Errorf("%s, not %s", e.states(), want)
				}
			})
		})
	}
}
