package cluster

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// Of a user who is no more nothing is left, and of records all is known whose names are asked for.
func TestAUserIsDropped(t *testing.T) {
	etcd, hosts := three(t)
	seat := hosts[0].hold(t, "gone")
	holder := hosts[0]
	for _, h := range hosts {
		if h.Host() == seat.Host {
			holder = h
		}
	}
	waittest.Until(t, "the holder knows", func() bool { _, held := holder.Seat("gone"); return held })
	if _, err := holder.Write(t.Context(), "gone", Change{Kind: "lasting", Name: "gone", Value: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		if names, err := h.Names(t.Context(), "lasting"); err != nil || len(names) != 1 || !names["gone"] || !h.Known() {
			t.Errorf("%s: %v, %v", h.Host(), names, err)
		}
		if h != holder {
			if err := h.Give(t.Context(), "gone", true); err != nil {
				t.Error(err)
			}
		}
	}
	if _, held := holder.Seat("gone"); !held {
		t.Error("another host has dropped it")
	}
	if _, err := holder.Write(t.Context(), "gone", Change{Kind: "lasting", Name: "gone"}); err != nil {
		t.Fatal(err)
	}
	if err := holder.Give(t.Context(), "gone", true); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"seats", "held", "lasting"} {
		if left, err := etcd.Get(t.Context(), "/daycare/"+kind+"/", clientv3.WithPrefix()); err != nil || left.Count != 0 {
			t.Errorf("%s: %v, %v", kind, left, err)
		}
	}
}
