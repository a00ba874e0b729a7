package guard

import (
	"fmt"
	"testing"
	"testing/synctest"
)

// TestTurnsAreUsers: who has a hundred busy links gets as much done as who has one, and that one waits for no more
// than one turn of the other.
func TestTurnsAreUsers(t *testing.T) {
	ts := turns{users: map[string]*turn{}}
	p := &poller{}
	done, before := map[string]int{}, 0
	busy := func(user string) *link {
		l := &link{poller: p, flow: &flow{client: &fakeClient{user: user}}}
		l.next = func(l *link) {
			const bytes = 256 << 10
			done[user] += bytes
			ts.did(bytes)
			l.continues = true
			ts.add(l)
		}
		return l
	}
	for range 100 {
		ts.add(busy("many"))
	}
	ts.add(busy("one"))
	fresh := &link{poller: p, flow: &flow{client: &fakeClient{user: "quiet"}}}
	fresh.next = func(*link) { before = done["many"] }
	ts.round()
	done["many"] = 0
	ts.add(fresh)
	for range 300 {
		ts.round()
	}
	if before > 512<<10 {
		t.Errorf("a quiet user waited for %d bytes of another", before)
	}
	if many, one := done["many"], done["one"]; many > one*11/10 || one > many*11/10 {
		t.Errorf("%d bytes of one link, %d of a hundred", one, many)
	}
	if len(ts.users) != 2 || len(ts.order) != 2 {
		t.Errorf("%d users are remembered, want the busy ones", len(ts.users))
	}
}

// Of one user, a link that continues does not keep those waiting of which something has happened, nor the reverse.
func TestTurnsOfOneUser(t *testing.T) {
	mine := &turn{}
	for i := range 3 {
		mine.fresh = append(mine.fresh, &link{name: fmt.Sprint("fresh", i)})
		if i < 2 {
			mine.begun = append(mine.begun, &link{name: fmt.Sprint("begun", i)})
		}
	}
	order := ""
	for mine.waits() {
		order += mine.next().name + " "
	}
	if want := "begun0 fresh0 begun1 fresh1 fresh2 "; order != want {
		t.Errorf("%s", order)
	}
}

// TestTheGateTakesTurns: a user's thousandth goroutine waits for its own, another's first for one of them.
func TestTheGateTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1)
		g.enter("many")
		order := make(chan string, 20)
		for _, user := range []string{"many", "many", "many", "many", "one"} {
			go func() {
				g.enter(user)
				order <- user
				g.leave()
			}()
			synctest.Wait()
		}
		g.leave()
		synctest.Wait()
		got := ""
		for range 5 {
			got += <-order + " "
		}
		if got != "many one many many many " {
			t.Errorf("%s", got)
		}
		if g.free != 1 || len(g.lines) != 0 || len(g.order) != 0 {
			t.Errorf("%d free, %d lines", g.free, len(g.lines))
		}
	})
}
