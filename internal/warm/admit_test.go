package warm

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// stand is a service with containers of which each was used a second after the one before.
func stand(t *testing.T, l *lab, list ...of) (s service, made []*dockerexec.Container) {
	t.Helper()
	s = l.serve()
	for i, w := range list {
		spec := l.spec(w.user)
		spec.Passwd = fmt.Sprint(i)
		c, _, err := s.acquire(t.Context(), spec, quota.Token{Name: w.token, Some: true})
		if err != nil {
			t.Fatal(err)
		}
		if w.calls == 0 {
			s.release(c)
		}
		made = append(made, c)
		waittest.Pass(time.Second)
	}
	return s, made
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
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				l.quotas = quota.New(tt.limits)
				s, list := stand(t, l, tt.list...)
				defer s.stop()
				give, err := s.TakePlace(t.Context(), quota.Account{User: "alice", Token: quota.Token{Name: "t", Some: true}})
				if err != nil {
					t.Fatal(err)
				}
				defer give()
				for i, c := range list {
					if gone := c.Now().State == life.Gone; gone != (i == tt.want) {
						t.Errorf("%d is gone: %t", i, gone)
					}
				}
			})
		})
	}
}

func TestNobodyMakesRoomWhoIsInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.quotas = quota.New(quota.Limits{PerUser: quota.Bounds{Containers: 1}})
		s, _ := stand(t, l, of{"alice", "", 1}, of{"bob", "", 0})
		defer s.stop()
		_, err := s.TakePlace(t.Context(), quota.Account{User: "alice"})
		if full, is := errors.AsType[*quota.Exceeded](err); !is || full.Scope != quota.User || full.Resource != quota.Containers {
			t.Fatal(err)
		}
		if len(s.Containers()) != 2 || len(s.claimed) > 0 {
			t.Errorf("left: %s", s.states())
		}
	})
}

// TestLeavingMakesRoomOnce has two callers wait for a place when only one comes free by itself.
func TestLeavingMakesRoomOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.quotas = quota.New(quota.Limits{PerUser: quota.Bounds{Containers: 2}})
		s, list := stand(t, l, of{"alice", "", 0}, of{"alice", "", 1})
		defer s.stop()
		leaving := list[0]
		leaving.Do(life.Retire, nil)
		alice := quota.Account{User: "alice"}
		placed := make(chan error, 1)
		take := func(ctx context.Context) {
			_, err := s.TakePlace(ctx, alice)
			placed <- err
		}
		gone, leave := context.WithCancel(t.Context())
		go take(gone)
		synctest.Wait()
		leave()
		if err := <-placed; !errors.Is(err, context.Canceled) || len(s.claimed) != 0 {
			t.Errorf("%v, %d claimed", err, len(s.claimed))
		}
		go take(t.Context())
		synctest.Wait()
		if !s.claimed[leaving] {
			t.Error("nobody waits for its place")
		}
		if _, err := s.TakePlace(t.Context(), alice); err == nil {
			t.Error("two have one place")
		}
		s.RemoveLater(leaving)
		if err := <-placed; err != nil {
			t.Error(err)
		}
	})
}

// TestNobodyWaitsForItAnyMore has a caller go before the container's turn has come.
func TestNobodyWaitsForItAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.quotas = quota.New(quota.Limits{Total: quota.Bounds{ColdStarts: 1}})
		s := l.serve()
		defer s.stop()
		done, err := l.quotas.Turn(t.Context(), quota.Account{User: "bob"})
		if err != nil {
			t.Fatal(err)
		}
		defer done()
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, _, err := s.acquire(ctx, l.spec("alice"), quota.Token{})
			ended <- err
		}()
		synctest.Wait()
		if l.quotas.Stats().Waiting != 1 {
			t.Error("it does not wait for its turn")
		}
		why := errors.New("hung up")
		cancel(why)
		if err := <-ended; !errors.Is(err, why) {
			t.Error(err)
		}
		synctest.Wait()
		if l.quotas.Stats().Waiting > 0 || len(s.Containers()) > 0 {
			t.Errorf("it is still to be made: %s", s.states())
		}
	})
}
