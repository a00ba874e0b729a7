package persistent

import (
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
)

// noRecords are shared records of which there are none.
type noRecords struct{ Shared }

func (noRecords) Seat(string) (host string, epoch int64) { return "h1", 1 }

// Who may not remove a user cannot have the user's seat given up.
func TestTheSeatOfAnothersUserStays(t *testing.T) {
	service := sandboxtest.New(t, sandboxtest.Options{})
	s, err := Open(Config{Shared: noRecords{}, Service: service, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	alice, bob := userID(t, "alice"), userID(t, "bob")
	for _, tt := range []struct {
		caller *sandbox.Service
		given  int
	}{{service.Scoped(ids.OnlyUsers(alice), quota.Token{}), 0}, {service, 1}} {
		if _, err := s.RemoveUser(t.Context(), tt.caller, bob, true); !cerrdefs.IsNotFound(err) {
			t.Errorf("%v", err)
		}
		given := 0
		s.Leave(func(func() error) { given++ }, nil)
		if given != tt.given {
			t.Errorf("%d seats are given up, not %d", given, tt.given)
		}
	}
}

func userID(t *testing.T, name string) ids.User {
	t.Helper()
	id, err := ids.ParseUser(name)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
