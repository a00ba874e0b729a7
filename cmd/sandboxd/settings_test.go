package main

import (
	"testing"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/plan"
)

// The pool's kinds are those in which E2B's sandboxes are made: with root, where they may have it.
func TestThePoolHasTheShapesOfSandboxes(t *testing.T) {
	for _, root := range []bool{false, true} {
		cfg := config.Config{E2B: config.E2B{AllowRoot: root, Templates: map[string]config.E2BTemplate{"one": {Image: "theirs", CPUs: 0.5}}}}
		kinds := poolSettings(cfg).Persistent
		want := []plan.Shape{{Root: root}, {Image: "theirs", CPUs: 0.5, Root: root}}
		if len(kinds) != 2 || kinds[0].Shape() != want[0] || kinds[1].Shape() != want[1] {
			t.Errorf("with root %t: %+v", root, kinds)
		}
	}
}
