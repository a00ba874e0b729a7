package sandbox_test

import (
	"context"
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
)

// BenchmarkAmong is what a call and a registration cost the facade among so many registered sandboxes, of which ten belong to
// each user: it must not depend on them.
func BenchmarkAmong(b *testing.B) {
	for _, there := range []int{10, 100_000} {
		s := sandboxtest.New(b, sandboxtest.Options{
			Executor: sandboxtest.Executor{RunFunc: func(context.Context, dockerexec.Spec, warm.Command, session.Output) (warm.Result, error) {
				return warm.Result{}, nil
			}},
		})
		var putting errgroup.Group
		putting.SetLimit(64) // each waits for the disk
		for i := range there {
			putting.Go(func() error {
				_, _, err := s.Put(fmt.Sprint("box-", i), sandbox.Registration{UserID: fmt.Sprint("user-", i/10)})
				return err
			})
		}
		if err := putting.Wait(); err != nil {
			b.Fatal(err)
		}
		for _, way := range []struct {
			name string
			do   func() error
		}{
			{"a call with its plan", func() error {
				_, err := s.Exec(b.Context(), "box-7", sandbox.Request{Command: "true"}, func(session.Stream, []byte) error { return nil })
				return err
			}},
			{"a registration", func() error {
				_, _, err := s.Put("new", sandbox.Registration{UserID: "user-0"})
				if err == nil {
					err = s.Delete(b.Context(), "new")
				}
				return err
			}},
		} {
			b.Run(fmt.Sprintf("%s/%d", way.name, there), func(b *testing.B) {
				for b.Loop() {
					if err := way.do(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
