package decisions_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// at is so many seconds after the start.
func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// denied is a question of a user's only container.
func denied(user, name string) decisions.Decision {
	return decisions.Decision{
		Time: start, User: user, Container: "c-" + user, Name: name,
		Via: decisions.DNS, Type: "A", Verdict: decisions.Denied, Reason: "name",
	}
}

// with returns a decision that was changed.
func with(d decisions.Decision, change func(*decisions.Decision)) decisions.Decision {
	change(&d)
	return d
}

func names(found []decisions.Decision) []string {
	var names []string
	for _, d := range found {
		names = append(names, d.Name)
	}
	return names
}

func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
