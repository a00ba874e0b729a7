package dockerexec

import (
	"testing"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
)

// What Docker only lists does not belong to anyone, and cannot be removed.
func TestGhostsBelongToNobody(t *testing.T) {
	docker := enginetest.New(t.Context())
	label := map[string]string{labelInstance: "test"}
	docker.Add(engine.Container{ID: "ghost", State: engine.Removing, Labels: label})
	docker.Add(engine.Container{ID: "going", Name: "going", State: engine.Removing, Labels: label})
	docker.Add(engine.Container{ID: "here", Name: "here", Labels: label})
	docker.Script(func(call enginetest.Call, do func() error) error {
		if call.Verb == "Inspect" && call.Name == "ghost" {
			return cerrdefs.ErrNotFound
		}
		return do()
	})
	all, err := Belongings(t.Context(), docker)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, b := range all {
		got += b.String() + "; "
	}
	if want := "container going; container here; "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
