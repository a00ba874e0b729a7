package dockerexec

import (
	"context"
	"errors"
	"io/fs"
	"testing"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/quota"
)

// stand is an executor with containers that nobody has made.
func stand(t *testing.T, quotas *quota.Ledger, list ...of) (e *Executor, made []*container) {
	t.Helper()
	e = New(refusing(t), Config{Instance: "test", Quotas: quotas, Mounts: &preparerLog{}, Log: zerolog.Nop()})
	t.Cleanup(func() {
		e.mu.Lock()
		clear(e.all) // they have no session to close
		e.mu.Unlock()
		e.Shutdown()
	})
	for i, w := range list {
		c := e.inPlace(t, Spec{User: w.user, UID: uint32(i)}, "", w.calls)
		c.token = quota.Token{Name: w.token, Some: true}
		c.give = quotas.Hold(quota.Account{User: w.user, Token: c.token}, quota.Containers, 1)
		made = append(made, c)
	}
	return e, made
}

// of says whose a container is, and how many calls have it.
type of struct {
	user, token string
	calls       int
}

func TestLongestIdleMakesRoom(t *testing.T) {
	for _, tt := range []struct {
		name   string
		limits quota.Limits
		list   []of
		want   int // the index of which
	}{
		{"its user's, idle for longest", quota.Limits{PerUser: quota.Bounds{Containers: 3}},
			[]of{{"bob", "t", 0}, {"alice", "t", 1}, {"alice", "u", 0}, {"alice", "t", 0}}, 2},
		{"its token's, idle for longest", quota.Limits{PerToken: quota.Bounds{Containers: 3}},
			[]of{{"alice", "u", 0}, {"alice", "t", 1}, {"bob", "t", 0}, {"alice", "t", 0}}, 2},
		{"that of whoever has most", quota.Limits{Total: quota.Bounds{Containers: 5}},
			[]of{{"alice", "t", 0}, {"alice", "t", 0}, {"bob", "v", 1}, {"bob", "v", 0}, {"bob", "v", 0}}, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, list := stand(t, quota.New(tt.limits), tt.list...)
			give, err := e.place(t.Context(), quota.Account{User: "alice", Token: quota.Token{Name: "t", Some: true}})
			if err != nil {
				t.Fatal(err)
			}
			defer give()
			for i, c := range list {
				if gone := c.is(life.Gone); gone != (i == tt.want) {
					t.Errorf("%d is gone: %t", i, gone)
				}
			}
		})
	}
}

func TestNobodyMakesRoomWhoIsInUse(t *testing.T) {
	e, list := stand(t, quota.New(quota.Limits{PerUser: quota.Bounds{Containers: 1}}), of{"alice", "", 1}, of{"bob", "", 0})
	_, err := e.place(t.Context(), quota.Account{User: "alice"})
	if full, is := errors.AsType[*quota.Exceeded](err); !is || full.Scope != quota.User || full.Resource != quota.Containers {
		t.Fatal(err)
	}
	if len(e.calls) != 2 || list[0].claimed {
		t.Errorf("%d are left", len(e.calls))
	}
}

// TestLeavingMakesRoomOnce has two callers wait for a place when only one comes free by itself.
func TestLeavingMakesRoomOnce(t *testing.T) {
	e, list := stand(t, quota.New(quota.Limits{PerUser: quota.Bounds{Containers: 2}}), of{"alice", "", 0}, of{"alice", "", 1})
	leaving := list[0]
	leaving.Do(life.Retire, nil)
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
	e.removeLater(leaving)
	if err := <-placed; err != nil {
		t.Error(err)
	}
}

// TestNobodyWaitsForItAnyMore has a caller go before the container's turn has come.
func TestNobodyWaitsForItAnyMore(t *testing.T) {
	quotas := quota.New(quota.Limits{Total: quota.Bounds{ColdStarts: 1}})
	e, _ := stand(t, quotas)
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
	for _, c := range e.calls {
		if !c.is(life.Leaving, life.Gone) {
			t.Error("it is still to be made")
		}
	}
}

// TestNothingIsKeptForContainersThatAreGone has one leave, and one of the pool that cannot be bound.
func TestNothingIsKeptForContainersThatAreGone(t *testing.T) {
	e, list := stand(t, quota.New(quota.Limits{}), of{"alice", "", 0})
	if err := e.Leave(t.Context(), "alice"); err != nil || list[0].Making().Err() == nil {
		t.Errorf("it left: %v", err)
	}
	m := newPoolModel(t)
	defer m.e.Shutdown()
	m.stock(false)
	m.e.cfg.GiveHome = func(string, string) error { return fs.ErrPermission }
	if err := m.e.Bind(t.Context(), "class", 0, quota.Account{User: "bob"}, Egress{Profile: "isolated"}); !errors.Is(err, fs.ErrPermission) {
		t.Fatal(err)
	}
	if len(m.e.all)+len(m.e.calls)+len(m.e.ids)+len(m.e.bound) != 0 {
		t.Errorf("left: %v", m.e.all)
	}
}
