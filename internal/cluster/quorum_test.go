package cluster

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// Without a majority of etcd whoever is held is still known, and nobody is placed on a guess, nor anything recorded.
func TestWithoutAMajorityNobodyIsPlaced(t *testing.T) {
	t.Parallel()
	etcd, _, signal := etcdtest.StartMembers(t, 3)
	h := join(t, etcd, "h1")
	signal(0, syscall.SIGKILL) // one may go
	var s Seat
	waittest.Until(t, "two of three have a leader", func() (ok bool) {
		var err error
		s, err = h.Hold(t.Context(), "alice")
		return err == nil
	})
	signal(1, syscall.SIGKILL)
	if now := h.hold(t, "alice"); now != s || h.MayStart("alice", int64(h.lease)) != nil {
		t.Errorf("%+v after %+v", now, s)
	}
	var placed, written, read error
	var asking sync.WaitGroup // each waits for a while
	asking.Go(func() { _, placed = h.Hold(t.Context(), "bob") })
	asking.Go(func() {
		_, written = h.Write(t.Context(), "alice", Change{Kind: "sandboxes", Name: "a", Value: []byte("1")})
	})
	asking.Go(func() { _, read = h.Read(t.Context(), "sandboxes", "a") })
	asking.Wait()
	if err := h.Answers(t.Context()); !cerrdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "see that a majority of its members runs") {
		t.Errorf("%v", err)
	}
	for what, err := range map[string]error{"placed": placed, "written": written, "read": read} {
		if !errors.Is(err, cerrdefs.ErrUnavailable) || !strings.Contains(err.Error(), "see that a majority of its members runs") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// What is asked of etcd for a user ends with the lease, however long etcd would be waited for.
func TestWritesEndWithTheLease(t *testing.T) {
	etcd, _, signal := etcdtest.StartMembers(t, 1)
	h := join(t, etcd, "h1")
	h.hold(t, "alice")
	leased := h.Leased()
	if err := h.Join(t.Context(), int64(h.lease)); err != nil || leased.Err() != nil {
		t.Errorf("joined with the same lease: %v, %v", err, leased.Err())
	}
	signal(0, syscall.SIGSTOP)
	defer signal(0, syscall.SIGCONT)
	written := make(chan error, 1)
	begun := time.Now()
	go func() {
		_, err := h.Write(leased, "alice", Change{Kind: "sandboxes", Name: "a", Value: []byte("1")})
		written <- err
	}()
	h.Fenced()
	if err := <-written; !cerrdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "has lost its lease") || time.Since(begun) >= askLimit {
		t.Errorf("%v after %s", err, time.Since(begun))
	}
	if h.Leased().Err() == nil {
		t.Error("more may be asked before there is another lease")
	}
	signal(0, syscall.SIGCONT)
	if err := h.Join(t.Context(), int64(h.lease)); err != nil || h.Leased().Err() != nil {
		t.Errorf("joined again: %v, %v", err, h.Leased().Err())
	}
}

// lateReads hold back the first read of the seats once they are armed.
type lateReads struct {
	clientv3.KV
	armed    atomic.Bool
	asked    chan struct{}
	answered chan struct{}
}

func (l *lateReads) Get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if key == keyOf("seats", "") && l.armed.CompareAndSwap(true, false) {
		close(l.asked)
		<-l.answered
	}
	return l.KV.Get(ctx, key, options...)
}

// A Join that was overtaken by that of a later lease gives up nothing that is held on the later one.
func TestALateJoinGivesUpNothing(t *testing.T) {
	etcd, _ := etcdtest.Start(t)
	late := &lateReads{KV: etcd.KV, asked: make(chan struct{}), answered: make(chan struct{})}
	etcd.KV = late
	h := join(t, etcd, "h1")
	grant := func() int64 {
		lease, err := etcd.Grant(t.Context(), 60)
		if err != nil {
			t.Fatal(err)
		}
		return int64(lease.ID)
	}
	overtaken := make(chan error, 1)
	late.armed.Store(true)
	first := grant()
	go func() { overtaken <- h.Join(t.Context(), first) }()
	<-late.asked
	second := grant()
	if err := h.Join(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	seat := h.hold(t, "alice")
	close(late.answered)
	if err := <-overtaken; err == nil {
		t.Error("it has joined with a lease of before")
	}
	kept, err := etcd.Get(t.Context(), keyOf("seats", "alice"))
	if err != nil || len(kept.Kvs) != 1 || kept.Kvs[0].CreateRevision != seat.Epoch || seat.Lease != second {
		t.Errorf("%+v is now %+v, %v", seat, kept, err)
	}
	if n, lives := h.Node("h1"); !lives || n.Lease != second {
		t.Errorf("the host: %+v", n)
	}
}

// A Join that has been called off begins nothing under a lease that has passed.
func TestAJoinThatWasCalledOff(t *testing.T) {
	etcd, _ := etcdtest.Start(t)
	h := join(t, etcd, "h1")
	off, cancel := context.WithCancel(t.Context())
	cancel()
	h.Fenced()
	if err := h.Join(off, int64(h.lease)); err == nil || h.Leased().Err() == nil {
		t.Errorf("it goes on: %v", err)
	}
}

// When etcd has no room left it records nothing: whoever is held stays, for the lease is renewed, and nobody new is placed.
func TestFullEtcdPlacesNobody(t *testing.T) {
	etcd, _, _ := etcdtest.StartMembers(t, 1, "--quota-backend-bytes", "8388608")
	h := join(t, etcd, "h1")
	s := h.hold(t, "alice")
	waittest.Until(t, "it is full", func() bool {
		_, err := etcd.Put(t.Context(), "filler", strings.Repeat("x", 1<<20))
		return errors.Is(err, rpctypes.ErrNoSpace)
	})
	if now := h.hold(t, "alice"); now != s || h.MayStart("alice", int64(h.lease)) != nil {
		t.Errorf("%+v after %+v", now, s)
	}
	if answer, err := etcd.KeepAliveOnce(t.Context(), h.lease); err != nil || answer.TTL <= 0 {
		t.Errorf("the lease: %+v, %v", answer, err)
	}
	_, placed := h.Hold(t.Context(), "bob")
	_, written := h.Write(t.Context(), "alice", Change{Kind: "sandboxes", Name: "a", Value: []byte("1")})
	for what, err := range map[string]error{"placed": placed, "written": written} {
		if !errors.Is(err, cerrdefs.ErrUnavailable) || !strings.Contains(err.Error(), "then disarm its alarm") {
			t.Errorf("%s: %v", what, err)
		}
	}
	// An operator makes room.
	last, err := etcd.Delete(t.Context(), "filler")
	if err == nil {
		_, err = etcd.Compact(t.Context(), last.Header.Revision)
	}
	if err == nil {
		_, err = etcd.Defragment(t.Context(), etcd.Endpoints()[0])
	}
	if err == nil {
		_, err = etcd.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	}
	if err != nil {
		t.Fatal(err)
	}
	h.hold(t, "bob")
}
