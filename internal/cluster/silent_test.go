package cluster

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// A member of etcd that is silent, be it the leader or the one that tells of changes, is left: users are placed meanwhile, and
// what changes becomes known.
func TestASilentMemberIsLeft(t *testing.T) {
	t.Parallel()
	_, endpoints, signal := etcdtest.StartMembers(t, 3)
	etcd, err := Dial(endpoints, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Close() })
	h := join(t, etcd, "h1")
	for silent := range endpoints {
		signal(silent, syscall.SIGSTOP)
		var slowest time.Duration
		begun := time.Now()
		for i := 0; time.Since(begun) < silentLimit; i++ {
			asked := time.Now()
			h.hold(t, fmt.Sprintf("user-%d-%d", silent, i)) // which waits until the seat is known
			slowest = max(slowest, time.Since(asked))
		}
		signal(silent, syscall.SIGCONT)
		t.Logf("member %d is silent: the slowest claim took %s", silent, slowest.Round(time.Millisecond))
		if slowest > askLimit {
			t.Errorf("a claim took %s", slowest)
		}
	}
}

// Calls go to members in turn whatever their pace, and so to one that answers: the fence sends a renewal every two looks.
func TestCallsGoToMembersInTurn(t *testing.T) {
	t.Parallel()
	_, endpoints, _ := etcdtest.StartMembers(t, 3)
	etcd, err := Dial(endpoints, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Close() })
	ask := func() string {
		var asked peer.Peer
		_, err := etcdserverpb.NewKVClient(etcd.ActiveConnection()).Range(t.Context(), &etcdserverpb.RangeRequest{Key: []byte("/"), Serializable: true}, grpc.Peer(&asked))
		if err != nil {
			t.Fatal(err)
		}
		return asked.Addr.String()
	}
	seen := map[string]bool{}
	waittest.Until(t, "all are connected with", func() bool { seen[ask()] = true; return len(seen) == 3 })
	clear(seen)
	pace := time.Tick(2 * lookEvery)
	for range endpoints {
		<-pace
		seen[ask()] = true
	}
	if len(seen) != 3 {
		t.Errorf("three calls went to %v", seen)
	}
}
