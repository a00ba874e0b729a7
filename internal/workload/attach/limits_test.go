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
		start(t, store, Command{User: "bob"})
		start(t, store, Command{User: "bob"})
		if _, err := store.Start(Command{User: "bob"}, idle); !cerrdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "the service has 5 execs") {
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
