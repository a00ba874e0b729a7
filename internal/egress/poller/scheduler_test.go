package poller

import (
	"fmt"
	"testing"
)

// TestTurnsAreUsers: a user with a hundred busy sessions gets as much done as a user with one, who waits for no more
// than one turn of the other.
func TestTurnsAreUsers(t *testing.T) {
	sc := scheduler{users: map[string]*queue{}}
	done, before := map[string]int{}, 0
	busy := func(user string) *Session {
		s := &Session{}
		s.handler = &fakeHandler{user: user, step: func() {
			const bytes = 256 << 10
			done[user] += bytes
			sc.did(bytes)
			s.continues = true
			sc.add(s)
		}}
		return s
	}
	for range 100 {
		sc.add(busy("many"))
	}
	sc.add(busy("one"))
	fresh := &Session{handler: &fakeHandler{user: "quiet", step: func() { before = done["many"] }}}
	sc.round()
	done["many"] = 0
	sc.add(fresh)
	for range 300 {
		sc.round()
	}
	if before > 512<<10 {
		t.Errorf("a quiet user waited for %d bytes of another", before)
	}
	if many, one := done["many"], done["one"]; many > one*11/10 || one > many*11/10 {
		t.Errorf("%d bytes of one session, %d of a hundred", one, many)
	}
	if len(sc.users) != 2 || len(sc.order) != 2 {
		t.Errorf("%d users are remembered, want the busy ones", len(sc.users))
	}
}

// A session that continues does not keep those of the same user waiting that have events, nor the reverse.
func TestTurnsOfOneUser(t *testing.T) {
	mine := &queue{}
	for i := range 3 {
		mine.fresh = append(mine.fresh, &Session{handler: &fakeHandler{user: fmt.Sprint("fresh", i)}})
		if i < 2 {
			mine.begun = append(mine.begun, &Session{handler: &fakeHandler{user: fmt.Sprint("begun", i)}})
		}
	}
	order := ""
	for mine.waits() {
		order += mine.next().handler.User() + " "
	}
	if want := "begun0 fresh0 begun1 fresh1 fresh2 "; order != want {
		t.Errorf("%s", order)
	}
}
