package main

import (
	"context"
	"slices"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/errs"
)

// hosts are those of a cluster. Only one that is lost may be removed.
type hosts []types.Node

func (h *hosts) List() []types.Node { return *h }

func (h *hosts) SetDraining(_ context.Context, node string, draining bool) error {
	for i := range *h {
		if n := &(*h)[i]; n.Name == node {
			n.Draining = draining
		}
	}
	return nil
}

func (h *hosts) Remove(_ context.Context, node string) error {
	i := slices.IndexFunc(*h, func(n types.Node) bool { return n.Name == node })
	if i < 0 || !(*h)[i].Lost {
		return errs.Conflict("host %q has a lease", node)
	}
	*h = slices.Delete(*h, i, i+1)
	return nil
}

func TestNode(t *testing.T) {
	l := newLab(t, nil)
	l.nodes = hosts{{Name: "host-1", Address: "10.0.0.1:7483", Version: "v1", Users: 3}, {Name: "host-2", Lost: true}}
	for _, verb := range []string{"drain", "undrain", "remove"} {
		if got := l.ok("", "__complete", "node", verb, ""); got != "host-1\nhost-2\n:4\n" {
			t.Errorf("%s completes to %q", verb, got)
		}
		if got := l.ok("", "__complete", "node", verb, "host-1", ""); got != ":4\n" {
			t.Errorf("%s of two completes to %q", verb, got)
		}
	}
	l.ok("", "node", "drain", "host-1")
	if got, want := l.ok("", "node", "list"), "HOST    STATE     USERS  ADDRESS        VERSION\nhost-1  draining  3      10.0.0.1:7483  v1\nhost-2  lost      0                     \n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if _, _, err := l.run(t.Context(), "", "node", "remove", "host-1"); err == nil {
		t.Error("a host that has a lease is removed")
	}
	l.ok("", "node", "remove", "host-2")
	if len(l.nodes) != 1 {
		t.Errorf("%+v", l.nodes)
	}
}
