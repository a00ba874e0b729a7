package fair

import (
	"math"
	"slices"
	"sync"
)

// Turns lets only so many go on at a time, and owners take turns: Go's scheduler is fair to
// goroutines, of which an owner has as many as it likes. The zero value lets one go on at a time.
// It is safe for concurrent use.
type Turns struct {
	// All is how many go on at a time, and Each how many of one owner; 0 of one of them means that
	// the other alone is the limit. They do not change.
	All, Each int

	mu     sync.Mutex
	busy   int
	owners map[string]*owner // those who wait and, with Each, those who have a turn
	order  []*owner          // those who wait, the next one first
}

// owner is one who takes turns.
type owner struct {
	name    string
	busy    int // with Each
	waiting []chan struct{}
}

// Begin waits for the owner's turn, which lasts until End. It reports false if ended is closed
// before; nil never is.
func (t *Turns) Begin(name string, ended <-chan struct{}) bool {
	t.mu.Lock()
	free := t.busy < t.atOnce()
	if free && t.Each == 0 { // which needs to know nothing of the owner
		t.busy++
		t.mu.Unlock()
		return true
	}
	o := t.owner(name)
	if free && o.busy < t.Each {
		t.busy++
		o.busy++
		t.mu.Unlock()
		return true
	}
	mine := make(chan struct{})
	if o.waiting = append(o.waiting, mine); len(o.waiting) == 1 {
		t.order = append(t.order, o)
	}
	t.mu.Unlock()
	select {
	case <-mine:
		return true
	case <-ended:
	}
	if !t.leave(o, mine) {
		t.End(name) // the turn came at the same time
	}
	return false
}

// atOnce is how many go on at a time, whoever they are.
func (t *Turns) atOnce() int {
	switch {
	case t.All > 0:
		return t.All
	case t.Each > 0:
		return math.MaxInt
	default:
		return 1
	}
}

// End ends one of the owner's turns, and gives it to the one who is next. It reports whether there
// was one.
func (t *Turns) End(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy--
	if t.Each > 0 {
		o := t.owners[name]
		o.busy--
		defer t.forget(o)
	}
	// All others were kept from a turn before, so no more than one of them may begin now.
	at := slices.IndexFunc(t.order, func(o *owner) bool { return t.Each == 0 || o.busy < t.Each })
	if at < 0 {
		return false
	}
	o := t.order[at]
	t.busy++
	if t.Each > 0 {
		o.busy++
	}
	close(o.waiting[0])
	o.waiting = o.waiting[1:]
	t.order = slices.Delete(t.order, at, at+1)
	if len(o.waiting) > 0 {
		t.order = append(t.order, o)
	}
	t.forget(o)
	return true
}

// leave takes a waiter out, and reports whether it had no turn yet.
func (t *Turns) leave(o *owner, mine chan struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := slices.Index(o.waiting, mine)
	if at < 0 {
		return false
	}
	if o.waiting = slices.Delete(o.waiting, at, at+1); len(o.waiting) == 0 {
		at := slices.Index(t.order, o)
		t.order = slices.Delete(t.order, at, at+1)
		t.forget(o)
	}
	return true
}

// owner finds or makes an owner; the lock is held.
func (t *Turns) owner(name string) *owner {
	o := t.owners[name]
	if o == nil {
		if t.owners == nil {
			t.owners = map[string]*owner{}
		}
		o = &owner{name: name}
		t.owners[name] = o
	}
	return o
}

// forget forgets an owner who has no turn and waits for none; the lock is held.
func (t *Turns) forget(o *owner) {
	if o.busy == 0 && len(o.waiting) == 0 {
		delete(t.owners, o.name)
	}
}

// Count returns how many turns there are now, and how many wait for one.
func (t *Turns) Count() (begun, waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.order {
		waiting += len(o.waiting)
	}
	return t.busy, waiting
}
