package dockerexec

import (
	"testing"

	containertypes "github.com/docker/docker/api/types/container"
)

// What Docker only lists does not belong to anyone, and cannot be removed.
func TestGhostsBelongToNobody(t *testing.T) {
	docker := fakeEngine(t, map[string]any{
		"/containers/json": []containertypes.Summary{
			{ID: "ghost", State: containertypes.StateRemoving}, {ID: "going", State: containertypes.StateRemoving, Names: []string{"/going"}},
			{ID: "here", State: containertypes.StateRunning, Names: []string{"/here"}},
		},
		"/containers/ghost/json": nil, "/containers/going/json": map[string]any{}, "/networks": []any{}, "/volumes": map[string]any{},
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
