package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	cerrdefs "github.com/containerd/errdefs"
)

// While Docker keeps a container's name for one that it does not show, it is asked again now and then, until it gives the name
// or the container takes too long.
func TestANameThatDockerKeeps(t *testing.T) {
	for name, c := range map[string]struct {
		reserved, most int // requests that are refused, and that may be made
		longest        time.Duration
		err            error
	}{
		"for a moment": {3, 4, time.Second, nil},
		"for good":     {1000, 300, creationLimit, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := newScriptedEngine(t)
				requests := 0
				engine.script(func(do func() error) error {
					if requests++; requests > c.reserved {
						return do()
					}
					return fmt.Errorf("the name is already in use: %w", cerrdefs.ErrConflict)
				}, "Create")
				e := engine.executor()
				defer e.Shutdown()
				spec := engine.spec("alice")
				made := e.newContainer(spec, spec.Fingerprint(), "", false)
				ctx, cancel := context.WithTimeout(t.Context(), creationLimit)
				defer cancel()
				begun := time.Now()
				_, err := e.create(ctx, made)
				if !errors.Is(err, c.err) || (err == nil) != (made.ID() != "") {
					t.Errorf("%q, %v", made.ID(), err)
				}
				if took := time.Since(begun); requests > c.most || took == 0 || took > c.longest {
					t.Errorf("%d requests in %v", requests, took)
				}
				if left := engine.spools(); (left == "") != (err != nil) {
					t.Errorf("spools: %s", left)
				}
			})
		})
	}
}
