package dockerexec

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/quota"
)

// stand is an executor with containers that nobody has made.
func stand(t *testing.T, quotas *quota.Ledger, list ...*container) *Executor {
	t.Helper()
	e := New(fakeEngine(t, map[string]any{}), Config{Instance: "test", Quotas: quotas, Mounts: &preparerLog{}, Log: zerolog.Nop()})
	t.Cleanup(func() {
		e.mu.Lock()
		clear(e.containers) // they have no session to close
		e.mu.Unlock()
		e.Shutdown()
	})
	now := time.Now()
	for i, w := range list {
		w.fingerprint = Fingerprint(rune('a' + i))
		w.ready, w.gone = make(chan struct{}), make(chan struct{})
		w.wanted, w.unwanted = context.WithCancelCause(e.ctx)
		w.lastUsed, w.begun = now.Add(time.Duration(i)*time.Second), true
		w.give = quotas.Hold(quota.Account{User: w.spec.User, Token: w.token}, quota.Containers, 1)
		close(w.ready)
		e.containers[w.fingerprint] = w
	}
	return e
}

func of(user, token string, users int) *container {
	return &container{spec: Spec{User: user}, token: quota.Token{Name: token, Some: true}, users: users}
}

func TestWhoMakesRoom(t *testing.T) {
	for _, tt := range []struct {
		name   string
		limits quota.Limits
		list   []*container
		want   int // the index of which
	}{
		{"its user's, idle for longest", quota.Limits{PerUser: quota.Bounds{Containers: 3}},
			[]*container{of("bob", "t", 0), of("alice", "t", 1), of("alice", "u", 0), of("alice", "t", 0)}, 2},
		{"its token's, idle for longest", quota.Limits{PerToken: quota.Bounds{Containers: 3}},
			[]*container{of("alice", "u", 0), of("alice", "t", 1), of("bob", "t", 0), of("alice", "t", 0)}, 2},
		{"that of whoever has most", quota.Limits{Total: quota.Bounds{Containers: 5}},
			[]*container{of("alice", "t", 0), of("alice", "t", 0), of("bob", "v", 1), of("bob", "v", 0), of("bob", "v", 0)}, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list := tt.list
			e := stand(t, quota.New(tt.limits), list...)
			give, err := e.place(t.Context(), quota.Account{User: "alice", Token: quota.Token{Name: "t", Some: true}})
			if err != nil {
				t.Fatal(err)
			}
			defer give()
			for i, w := range list {
				if there := e.containers[w.fingerprint] == w; there == (i == tt.want) {
					t.Errorf("%d is there: %t", i, there)
				}
			}
			select {
			case <-list[tt.want].gone:
			default:
				t.Error("its place was taken before it had gone")
			}
		})
	}
}

func TestNobodyMakesRoomWhoIsInUse(t *testing.T) {
	busy := of("alice", "", 1)
	e := stand(t, quota.New(quota.Limits{PerUser: quota.Bounds{Containers: 1}}), busy, of("bob", "", 0))
	_, err := e.place(t.Context(), quota.Account{User: "alice"})
	if full, is := errors.AsType[*quota.Exceeded](err); !is || full.Scope != quota.User || full.Resource != quota.Containers {
		t.Fatal(err)
	}
	if len(e.containers) != 2 || busy.claimed {
		t.Errorf("%d are left", len(e.containers))
	}
}

// TestWhatLeavesMakesRoomOnce has two callers wait for a place when only one comes free by itself.
func TestWhatLeavesMakesRoomOnce(t *testing.T) {
	leaving, busy := of("alice", "", 0), of("alice", "", 1)
	e := stand(t, quota.New(quota.Limits{PerUser: quota.Bounds{Containers: 2}}), leaving, busy)
	e.mu.Lock()
	e.drop(leaving)
	e.mu.Unlock()
	alice := quota.Account{User: "alice"}
	placed := make(chan error, 1)
	go func() {
		_, err := e.place(t.Context(), alice)
		placed <- err
	}()
	for claimed := false; !claimed; {
		e.mu.Lock()
		claimed = leaving.claimed
		e.mu.Unlock()
	}
	if _, err := e.place(t.Context(), alice); err == nil {
		t.Error("two have one place")
	}
	e.discard(leaving)
	if err := <-placed; err != nil {
		t.Error(err)
	}
}

// TestNobodyWaitsForItAnyMore has a caller go before the container's turn has come.
func TestNobodyWaitsForItAnyMore(t *testing.T) {
	quotas := quota.New(quota.Limits{Total: quota.Bounds{ColdStarts: 1}})
	e := stand(t, quotas)
	done, err := quotas.Turn(t.Context(), quota.Account{User: "bob"})
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, _, err := e.acquire(ctx, Spec{User: "alice"}, quota.Token{})
		ended <- err
	}()
	for quotas.Stats().Waiting == 0 {
	}
	why := errors.New("hung up")
	cancel(why)
	if err := <-ended; !errors.Is(err, why) {
		t.Error(err)
	}
	for quotas.Stats().Waiting > 0 {
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.containers) != 0 {
		t.Error("it is still to be made")
	}
}

// TestNothingIsKeptForContainersThatAreGone has one leave, and one of the pool that cannot be bound.
func TestNothingIsKeptForContainersThatAreGone(t *testing.T) {
	left := of("alice", "", 0)
	e := stand(t, quota.New(quota.Limits{}), left)
	if err := e.Leave(t.Context(), "alice"); err != nil || left.wanted.Err() == nil {
		t.Errorf("it left: %v", err)
	}
	m := newPoolModel(t)
	defer m.e.Shutdown()
	m.stock(false)
	from, to, err := m.e.claim("class", 0, quota.Account{User: "bob"}, Egress{Profile: "isolated"})
	if err != nil {
		t.Fatal(err)
	}
	m.e.abandon(from, to)
	m.e.work.Done()
	<-from.gone
	if from.wanted.Err() == nil || to.wanted.Err() == nil {
		t.Errorf("not bound: %v, %v", from.wanted.Err(), to.wanted.Err())
	}
}
