package decisions_test

import (
	"testing"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

func TestFollowersOfSomeUsers(t *testing.T) {
	log := decisions.New(10)
	alice := log.Scoped(func(user string) bool { return user == "alice" })
	follower := follow(t, alice, decisions.Filter{})
	defer follower.Close()
	for _, user := range []string{"bob", "", "alice"} {
		log.Add(decisions.Decision{User: user, Name: "x.org", Via: decisions.DNS, Verdict: decisions.Denied})
	}
	if d, lost, err := follower.Next(t.Context()); err != nil || d.User != "alice" || lost != 0 {
		t.Errorf("%+v, %d lost, %v", d, lost, err)
	}
	// What is added to one is in the other: they tell of the same.
	alice.Add(decisions.Decision{User: "bob", Name: "y.org", Via: decisions.DNS, Verdict: decisions.Denied})
	if n := len(log.Recent(decisions.Filter{}, 0)); n != 4 {
		t.Errorf("%d decisions", n)
	}
	if list := alice.Recent(decisions.Filter{}, 0); len(list) != 1 {
		t.Errorf("for alice: %+v", list)
	}
}
