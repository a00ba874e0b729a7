package sandbox

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/plantest"
)

func TestHealth(t *testing.T) {
	s := newService(t, nil, "")
	if got, want := s.Health(t.Context()), (Health{Engine: "20.10.24", Runtime: "runsc", Image: "sha256:aa", ImageVersion: "1", UsersDir: s.usersDir(), MaxTimeout: s.cfg().MaxTimeout}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	cfg := plantest.Platform(t)
	cfg.Inspect = func(context.Context) (engine.Info, error) { return engine.Info{}, errors.New("no engine: start it") }
	s.planner.Platforms().Use(cfg)
	if got, want := s.Health(t.Context()), (Health{Problem: "no engine: start it", UsersDir: s.usersDir(), MaxTimeout: s.cfg().MaxTimeout}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	// Without Docker nothing starts, and the caller is told the same.
	if _, err := s.Exec(t.Context(), "agent", Request{Command: "ls"}, nil); err == nil || err.Error() != "no engine: start it" {
		t.Error(err)
	}
}
