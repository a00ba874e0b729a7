package cluster

import (
	"errors"
	"strings"
	"sync"
	"testing"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
)

// Without a majority of etcd whoever is held is still known, and nobody is placed on a guess, nor anything recorded.
func TestWithoutAMajorityNobodyIsPlaced(t *testing.T) {
	etcd, _, kill := etcdtest.StartMembers(t, 3)
	h := join(t, etcd, "h1")
	kill(0) // one may go
	var s Seat
	until(t, "two of three have a leader", func() (ok bool) {
		var err error
		s, err = h.Hold(t.Context(), "alice")
		return err == nil
	})
	kill(1)
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
	for what, err := range map[string]error{"placed": placed, "written": written, "read": read} {
		if !errors.Is(err, cerrdefs.ErrUnavailable) || !strings.Contains(err.Error(), "see that a majority of its members runs") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
