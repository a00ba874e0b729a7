package sandbox

import (
	"path/filepath"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// Calls of users whose storage hangs are answered, also where the pool would have a home for them, and others run.
func TestHungStorageHoldsUpNoCall(t *testing.T) {
	t.Parallel()
	for name, hung := range map[string]struct {
		dir  string // of usersDir
		runs bool   // commands of others do
	}{"all of usersDir": {".", false}, "a user's folder": {"alice", true}, "a home": {"alice/home", true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _, _ := newPool(t, 1, 2)
			register(t, s, "alices", "alice")
			register(t, s, "bobs", "bob")
			end := waittest.Hang(t, filepath.Join(s.usersDir(), hung.dir))
			for _, call := range []struct {
				what string
				make func() error
			}{
				{"a command", func() error { _, err := s.Exec(t.Context(), "alices", Request{Command: "true"}, nil); return err }},
				{"removal of the home", func() error { _, err := s.RemoveUser(t.Context(), user(t, "alice"), true); return err }},
			} {
				answered := make(chan error, 1)
				go func() { answered <- call.make() }()
				select {
				case err := <-answered:
					if !cerrdefs.IsUnavailable(err) {
						t.Errorf("%s: %v", call.what, err)
					}
				case <-time.After(30 * time.Second):
					t.Errorf("%s waits for what does not answer", call.what)
					end()
					<-answered
					return
				}
			}
			if !hung.runs {
				return
			}
			if _, err := s.Exec(t.Context(), "bobs", Request{Command: "true"}, nil); err != nil {
				t.Errorf("another's command: %v", err)
			}
		})
	}
}
