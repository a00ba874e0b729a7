package member

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/cluster"
	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
	"github.com/daycare-run/sandbox/internal/cluster/fence"
	"github.com/daycare-run/sandbox/internal/cluster/forward"
	"github.com/daycare-run/sandbox/internal/plantest"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/internal/waittest"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// oneHost is the only host of a cluster. Whom it gives up is released by release.
func oneHost(t *testing.T, release func(user string)) (_ *Member, etcd *cluster.Etcd) {
	t.Helper()
	etcd, _ = etcdtest.Start(t)
	log := zerolog.Nop()
	joined := &Membership{
		cluster: cluster.New(etcd, cluster.Config{Host: "h1", Address: "127.0.0.1:1", Version: "test", Log: log}),
		fence:   fence.NewMember(fence.Files{Base: filepath.Join(t.TempDir(), "api")}, "", log),
		log:     log,
	}
	planner := plantest.New(t, rootfs.Config{UsersDir: filepath.Join(t.TempDir(), "users")}, nil, nil)
	sandboxes, err := persistent.Open(persistent.Config{Shared: joined.Persistent(), Planner: planner, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	m := newMember(joined, Parts{Registry: planner.Sandboxes(), Persistent: sandboxes})
	m.workloads = []workload{sandboxes}
	m.router = forward.New(forward.Config{Cluster: m.cluster, Local: released{m, release}, Log: log})
	first := make(chan struct{})
	t.Cleanup(inBackground(context.Background(), func(ctx context.Context) { m.cluster.Run(ctx, first) }))
	<-first
	lease, err := etcd.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.cluster.Join(t.Context(), int64(lease.ID)); err != nil {
		t.Fatal(err)
	}
	return m, etcd
}

// released is a Member on which nothing runs.
type released struct {
	*Member
	release func(user string)
}

func (released) MayStart(string) error { return nil }
func (released) Take(string) error     { return nil }
func (released) Busy(string) bool      { return false }
func (r released) Release(_ context.Context, user string) error {
	r.release(user)
	return nil
}

// bobs is a workload of bob's.
type bobs struct {
	workload
	due *atomic.Bool
}

func (b bobs) Due() []string {
	if b.due.Load() {
		return []string{"bob"}
	}
	return nil
}

// A sandbox that is given up slowly holds up neither the end of another one nor the start of what has to run.
func TestSlowReleaseHoldsUpNobody(t *testing.T) {
	let, slow := make(chan struct{}), make(chan struct{}, 1)
	m, _ := oneHost(t, func(user string) {
		if user == "slow" {
			slow <- struct{}{}
			<-let
		}
	})
	for _, id := range []string{"slow", "ended"} {
		if _, err := m.cluster.Hold(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	var wanted atomic.Bool
	m.workloads = append(m.workloads, bobs{due: &wanted})
	m.parts.Persistent.Abandon("slow")
	defer inBackground(t.Context(), m.tendUsers)()
	defer close(let)
	<-slow
	m.parts.Persistent.Abandon("ended")
	wanted.Store(true)
	waittest.Until(t, "bob is held, and what has ended is not", func() bool {
		return m.cluster.Holds("bob") && !m.cluster.Holds("ended")
	})
}

// Who was idle when a drain began stays if that is no longer so when the turn comes, or if the host is not drained any more.
func TestADrainLooksWhenTheTurnComes(t *testing.T) {
	for name, all := range map[string]bool{"a call has begun": false, "the drain is called off": true} {
		t.Run(name, func(t *testing.T) {
			let, began := make(chan struct{}), make(chan string, givenAtOnce+1)
			m, etcd := oneHost(t, func(user string) {
				began <- user
				<-let
			})
			call := func(user string) (context.Context, func()) {
				t.Helper()
				ctx, done, err := forward.Entry{Router: m.router}.Route(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil), access.Caller{}, user, false)
				if err != nil {
					t.Fatal(err)
				}
				return ctx, done
			}
			waiting := map[string]bool{}
			for i := range givenAtOnce + 1 {
				user := fmt.Sprint("user-", i)
				_, done := call(user)
				done()
				waiting[user] = true
			}
			joinOther(t, m, etcd)
			drain := func(is bool) {
				if err := m.SetDraining(t.Context(), "h1", is); err != nil {
					t.Fatal(err)
				}
			}
			drain(true)
			var turns errgroup.Group
			turns.SetLimit(givenAtOnce)
			drained := make(chan struct{})
			go func() {
				m.drain(t.Context(), &turns, all)
				_ = turns.Wait()
				close(drained)
			}()
			for range givenAtOnce {
				delete(waiting, <-began)
			}
			if all {
				drain(false)
			}
			for user := range waiting {
				ctx, done := call(user)
				close(let)
				select {
				case <-drained:
				case <-ctx.Done():
					t.Errorf("the call was ended: %v", context.Cause(ctx))
				}
				done()
				<-drained
				if len(began) > 0 || !m.cluster.Holds(user) {
					t.Errorf("%s was given up", user)
				}
			}
			if n := len(m.cluster.Seated()); n != 1 {
				t.Errorf("%d users are left", n)
			}
		})
	}
}

// joinOther has another host join, and m know of it.
func joinOther(t *testing.T, m *Member, etcd *cluster.Etcd) {
	t.Helper()
	lease, err := etcd.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	other := cluster.New(etcd, cluster.Config{Host: "h2", Address: "127.0.0.1:2", Version: "test", Log: zerolog.Nop()})
	t.Cleanup(inBackground(context.Background(), func(ctx context.Context) { other.Run(ctx, nil) }))
	if err := other.Join(t.Context(), int64(lease.ID)); err != nil {
		t.Fatal(err)
	}
	if text, err := m.cluster.Read(t.Context(), "nodes", "h2"); err != nil || text == nil { // it is known here then
		t.Fatalf("%s, %v", text, err)
	}
}
