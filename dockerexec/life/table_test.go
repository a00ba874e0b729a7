package life

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// may says when an event is allowed, event by event, as a reader of the calls would put it.
func may(l *Life, on Event) bool {
	in := func(states ...State) bool { return slices.Contains(states, l.state) }
	idle := !l.detached && l.calls+l.commands == 0
	switch on {
	case Begin:
		return in(Queued)
	case Succeed:
		return in(Starting)
	case Fail: // its maker's, whatever came in between
		return in(Queued, Starting, Ended, Leaving)
	case Call: // refused when it has ended, or is paused because its user wanted that
		return in(Queued, Starting, Ready, Draining) || in(Frozen) && l.reason != Requested
	case Return: // never refused to who has called
		return !in(Frozen, Ended)
	case Freeze:
		return in(Ready) && idle
	case Pause:
		return in(Ready, Frozen) && l.detached
	case Resume:
		return in(Frozen) && (l.detached || l.reason == Idle)
	case Retire:
		return in(Ready, Frozen) && !l.detached || in(Ready) && l.calls+l.commands > 0
	case Evict:
		return in(Ready, Frozen) && idle
	case Bind:
		return in(Ready) && idle
	case Die:
		return in(Starting, Ready, Draining, Frozen)
	case Abort: // one that has been made is not touched
		return in(Starting)
	case Remove:
		return !in(Leaving, Gone)
	case Removed:
		return in(Leaving)
	case Release:
		return in(Starting, Ready, Draining, Frozen)
	}
	return false
}

// leads says where an event leads, from where it was.
func leads(from State, calls int, detached bool, reason Reason, on Event) State {
	end := Leaving
	if detached {
		end = Ended
	}
	switch on {
	case Begin:
		return Starting
	case Succeed, Resume:
		return Ready
	case Call:
		if from == Frozen && reason == Found {
			return Starting
		}
		if from == Frozen {
			return Ready
		}
	case Return:
		if calls == 1 && (from == Queued || from == Draining) {
			return Leaving
		}
	case Freeze, Pause:
		return Frozen
	case Retire:
		if calls > 0 {
			return Draining
		}
		return Leaving
	case Evict, Abort, Remove, Fail:
		return Leaving
	case Bind, Removed, Release:
		return Gone
	case Die:
		return end
	}
	return from
}

// walk takes a Life through random events, and returns the first thing that is not as may and leads say. taken counts
// the lines of the table.
func walk(random *rand.Rand, taken map[transition]int) error {
	c := Config{Detached: random.IntN(3) == 0}
	if random.IntN(2) == 0 {
		c.ID, c.Paused = "c", random.IntN(2) == 0
	}
	l := New(context.Background(), c)
	for step := range 40 {
		on := Event(random.IntN(events))
		if on == Return && l.calls == 0 || on == Call && l.detached {
			continue // nobody does that
		}
		if (on == Abort || on == Remove || on == Release || on == Die || on == Fail) && random.IntN(3) > 0 {
			continue // or few walks would be long
		}
		from, calls, reason, wants := l.state, l.calls, l.reason, may(l, on)
		for _, t := range table {
			if t.from == from && t.on == on && l.holds(t.guard) {
				taken[t]++
			}
		}
		why := fmt.Errorf("step %d", step)
		out := l.Do(on, why)
		if (out != Refused) != wants {
			return fmt.Errorf("%v in %v: allowed %v", on, from, !wants)
		}
		if (out == Ends) != (l.state == Ended && from > Starting && from != Ended) || (out == Removes) != (l.state == Leaving && from > Starting && from != Leaving) {
			return fmt.Errorf("%v in %v leads to %v, and the caller has to %v", on, from, l.state, out)
		}
		if want := from; wants {
			want = leads(from, calls, l.detached, reason, on)
			if l.state != want {
				return fmt.Errorf("%v in %v leads to %v, not to %v", on, from, l.state, want)
			}
		} else if l.state != from || l.calls != calls {
			return fmt.Errorf("%v was refused in %v, and changed it", on, from)
		}
		if err := consistent(l); err != nil {
			return fmt.Errorf("after %v in %v: %w", on, from, err)
		}
	}
	return nil
}

// consistent says what holds in each state.
func consistent(l *Life) error {
	closed := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	switch {
	case closed(l.Gone()) != (l.state == Gone):
		return errors.New("gone is not told")
	case l.state > Starting && l.state != Frozen && l.state != Leaving && !closed(l.Settled()):
		return errors.New("who waits for it is not woken")
	case l.state <= Starting && (closed(l.Settled()) || l.Making().Err() != nil):
		return errors.New("its maker is told to stop")
	case l.state == Leaving && l.making.Err() == nil:
		return errors.New("its maker is not told to stop")
	case (l.state == Frozen) != l.paused():
		return errors.New("it is paused without being frozen, or the other way round")
	case l.state == Ended && !l.detached, l.state == Frozen && l.calls > 0:
		return errors.New("nobody knows that state")
	}
	return nil
}

// A Life goes the way that the table says, and each line of the table is needed: without it, a walk goes wrong.
func TestEachLineOfTheTableIsNeeded(t *testing.T) {
	taken := map[transition]int{}
	walks := func() error {
		random := rand.New(rand.NewPCG(1, 2))
		for range 4000 {
			if err := walk(random, taken); err != nil {
				return err
			}
		}
		return nil
	}
	if err := walks(); err != nil {
		t.Fatal(err)
	}
	whole := table
	defer func() { table = whole }()
	for i, line := range whole {
		if taken[line] == 0 {
			t.Errorf("no walk takes %v %v to %v", line.from, line.on, line.to)
		}
		table = slices.Delete(slices.Clone(whole), i, i+1)
		if walks() == nil {
			t.Errorf("without %v %v to %v, nothing goes wrong", line.from, line.on, line.to)
		}
	}
}

// No two lines of the table can hold at one time, and from each state a container can come to its end.
func TestTheTableIsUnambiguous(t *testing.T) {
	ends := map[State]bool{Gone: true}
	for range states {
		for _, line := range table {
			ends[line.from] = ends[line.from] || ends[line.to]
		}
	}
	for s := range State(states) {
		if !ends[s] {
			t.Errorf("nothing leads from %v to the end", s)
		}
	}
	for _, persists := range []bool{false, true} {
		for calls := range 3 {
			for _, reason := range []Reason{Idle, Found, Requested} {
				l := &Life{detached: persists, calls: calls, reason: reason}
				seen := map[[2]int]bool{}
				for _, line := range table {
					at := [2]int{int(line.from), int(line.on)}
					if l.holds(line.guard) && seen[at] {
						t.Errorf("%v in %v leads to two states", line.on, line.from)
					}
					seen[at] = seen[at] || l.holds(line.guard)
				}
			}
		}
	}
}
