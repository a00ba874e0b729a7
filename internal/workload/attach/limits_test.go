package attach

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/waittest"
)

func TestResultsAreKeptForAWhile(t *testing.T) {
	withStore(t, func(t *testing.T, store *Store[int]) {
		s := start(t, store, alice)
		waittest.Pass(time.Hour)
		s.exits()
		waittest.Pass(5*time.Minute - 1)
		if _, err := store.Get("alice", s.exec.ID); err != nil {
			t.Error(err)
		}
		waittest.Pass(2 * time.Nanosecond)
		if _, err := store.Get("alice", s.exec.ID); !cerrdefs.IsNotFound(err) {
			t.Error(err)
		}
	})
}

func TestCommandsThatNeverStart(t *testing.T) {
	withStore(t, func(t *testing.T, store *Store[int]) {
		refused := errors.New("denied")
		e, err := store.Start(alice, func(context.Context, *exec) (int, error) { return 0, refused })
		if err != nil {
			t.Fatal(err)
		}
		wants(t, attachTo(t, e, 0), "end 0 denied")
		synctest.Wait()
		if list := store.List("alice"); len(list) > 0 {
			t.Errorf("%d are kept", len(list))
		}
	})
}

func TestExecsAreWaitedFor(t *testing.T) {
	withStore(t, func(t *testing.T, store *Store[int]) {
		first, second := start(t, store, alice), start(t, store, bob)
		over := make(chan bool, 1)
		go func() { over <- store.Wait(t.Context()) }()
		first.exits()
		synctest.Wait()
		select {
		case <-over:
			t.Fatal("the second one runs")
		default:
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if store.Wait(ended) {
			t.Error("its context has ended, and the second one runs")
		}
		second.exits()
		if !<-over || !store.Wait(t.Context()) {
			t.Error("all have ended")
		}
	})
}

func TestExecsAreBounded(t *testing.T) {
	withStore(t, func(t *testing.T, store *Store[int]) {
		idle := func(ctx context.Context, e *exec) (int, error) {
			e.Started()
			<-ctx.Done()
			return 0, context.Cause(ctx)
		}
		first := start(t, store, alice)
		waittest.Pass(time.Nanosecond)
		start(t, store, alice)
		start(t, store, alice)
		if _, err := store.Start(alice, idle); !cerrdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), `user "alice" has 3`) {
			t.Error(err)
		}
		first.exits()
		start(t, store, alice) // in the place of the first
		if _, err := store.Get("alice", first.exec.ID); !cerrdefs.IsNotFound(err) {
			t.Error(err)
		}
		start(t, store, bob)
		start(t, store, bob)
		if _, err := store.Start(bob, idle); !cerrdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "the service has 5 execs") {
			t.Error(err)
		}
	})
}

// TestWhoHasTheMostMakesRoom meets the total of five, where each user may have three: the new one counts, too.
func TestWhoHasTheMostMakesRoom(t *testing.T) {
	carol := Command{User: "carol"}
	for name, tt := range map[string]struct {
		there []Command // from the oldest on; they have ended
		comes Command
		goes  int
	}{
		"the user's own, of two with as many": {[]Command{alice, alice, alice, bob, bob}, bob, 3},
		"the user's own, who has the most":    {[]Command{alice, alice, bob, bob, carol}, bob, 2},
		"another's, who has more":             {[]Command{carol, bob, alice, alice, alice}, carol, 2},
		"the oldest of two others'":           {[]Command{carol, bob, alice, bob, alice}, Command{User: "dave"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			withStore(t, func(t *testing.T, store *Store[int]) {
				var there []*script
				for _, c := range tt.there {
					there = append(there, start(t, store, c))
					there[len(there)-1].exits()
					waittest.Pass(time.Nanosecond)
				}
				start(t, store, tt.comes)
				for i, s := range there {
					if _, err := store.Get(tt.there[i].User, s.exec.ID); cerrdefs.IsNotFound(err) != (i == tt.goes) {
						t.Errorf("%d, of %s: %v", i, tt.there[i].User, err)
					}
				}
			})
		})
	}
}

// Where all execs run of the user who has the most, another's makes room.
func TestRunningExecsMakeNoRoom(t *testing.T) {
	withStore(t, func(t *testing.T, store *Store[int]) {
		for range 3 {
			start(t, store, alice)
		}
		first := start(t, store, bob)
		first.exits()
		start(t, store, bob)
		start(t, store, Command{User: "carol"})
		if _, err := store.Get("bob", first.exec.ID); !cerrdefs.IsNotFound(err) {
			t.Error(err)
		}
	})
}

func TestShutdownEndsAll(t *testing.T) {
	withStore(t, func(t *testing.T, store *Store[int]) {
		s := start(t, store, alice)
		v := attachTo(t, s.exec, 0)
		store.Shutdown()
		wants(t, v, "start", "end 0 "+errStopping.Error())
		if _, err := store.Start(alice, nil); !cerrdefs.IsUnavailable(err) {
			t.Error(err)
		}
	})
}

// A caller that is attached and takes nothing keeps a command neither from being killed nor from its time.
func TestStalledCallersDelayNoEnd(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *script){
		"killed": func(t *testing.T, s *script) {
			if err := s.exec.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		"out of time": func(_ *testing.T, s *script) {
			s.exec.End()
			s.exits()
		},
	} {
		t.Run(name, func(t *testing.T) {
			withStore(t, func(t *testing.T, store *Store[int]) {
				s := start(t, store, alice)
				v := attachTo(t, s.exec, 0)
				defer v.Close()
				s.steps <- func(ctx context.Context, e *exec) {
					for range 50 {
						_ = e.Output(ctx, session.Stdout, []byte(strings.Repeat("x", 100_000)))
					}
				}
				synctest.Wait()
				if printed := s.exec.Status().Output; printed > 1<<20 {
					t.Fatalf("it did not wait: %d bytes", printed)
				}
				end(t, s)
				if status := s.exec.Status(); status.Ended.IsZero() || status.Output != 5_000_000 {
					t.Errorf("%+v", status)
				}
			})
		})
	}
}

// TestDroppedExecsAreFreed looks at memory: the bound on ended commands is also a bound on the memory that they take.
func TestDroppedExecsAreFreed(t *testing.T) {
	store := NewStore[int](Config{Quotas: quota.New(quota.Limits{PerUser: quota.Bounds{DetachedExecs: 1}, Total: quota.Bounds{DetachedExecs: 1}}), Keep: time.Hour})
	defer store.Shutdown()
	run := func() weak.Pointer[exec] {
		e, err := store.Start(alice, func(_ context.Context, e *exec) (int, error) {
			e.Started()
			return 0, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		<-e.done
		return weak.Make(e)
	}
	first := run()
	run()
	for range 1000 {
		runtime.GC()
		if first.Value() == nil {
			return
		}
		runtime.Gosched()
	}
	t.Error("it is kept for as long as if it had not made room")
}
