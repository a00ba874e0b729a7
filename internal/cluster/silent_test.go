package cluster

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
)

// A member of etcd that is silent, be it the leader or the one that tells of changes, is left: users are placed meanwhile, and
// what changes becomes known.
func TestASilentMemberIsLeft(t *testing.T) {
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
