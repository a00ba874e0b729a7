package quota

import (
	"context"
	"slices"
)

// waiter is a cold start that waits for its turn.
type waiter struct {
	account Account
	turn    chan func() // gets what ends the turn
}

// line is who waits, by user. The users are in the order of their turns: whoever has had one goes to the end.
type line struct {
	users []string
	of    map[string][]*waiter
}

func (w *line) length() (n int) {
	for _, list := range w.of {
		n += len(list)
	}
	return n
}

func (w *line) add(n *waiter) {
	user := n.account.User
	if len(w.of[user]) == 0 {
		w.users = append(w.users, user)
	}
	if w.of == nil {
		w.of = map[string][]*waiter{}
	}
	w.of[user] = append(w.of[user], n)
}

// remove takes a waiter out, and reports whether it was there.
func (w *line) remove(n *waiter) bool {
	user := n.account.User
	i := slices.Index(w.of[user], n)
	if i < 0 {
		return false
	}
	w.of[user] = slices.Delete(w.of[user], i, i+1)
	if len(w.of[user]) == 0 {
		delete(w.of, user)
		w.users = slices.DeleteFunc(w.users, func(u string) bool { return u == user })
	}
	return true
}

// Turn waits until a container may be made for an account: the users that wait have their turns one after the
// other, however many wait for each. The turn lasts until done is called. The error is ctx's cause.
func (l *Ledger) Turn(ctx context.Context, a Account) (done func(), err error) {
	if l == nil {
		return func() {}, context.Cause(ctx)
	}
	n := &waiter{account: a, turn: make(chan func(), 1)}
	l.mu.Lock()
	l.waiting.add(n)
	l.dispatch()
	l.mu.Unlock()
	select {
	case done = <-n.turn:
		return done, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	waited := l.waiting.remove(n)
	l.mu.Unlock()
	if !waited { // the turn came at the same time
		done = <-n.turn
		done()
	}
	return nil, context.Cause(ctx)
}

// dispatch gives turns to those who may have one; the lock is held.
func (l *Ledger) dispatch() {
	for n := l.next(); n != nil; n = l.next() {
		l.waiting.remove(n)
		if user := n.account.User; len(l.waiting.of[user]) > 0 {
			l.waiting.users = append(slices.DeleteFunc(l.waiting.users, func(u string) bool { return u == user }), user)
		}
		n.turn <- l.hold(n.account, ColdStarts, 1)
	}
}

// next is the first waiter, in the order of turns, whom no bound keeps; the lock is held.
func (l *Ledger) next() *waiter {
	for _, user := range l.waiting.users {
		for _, n := range l.waiting.of[user] {
			full := l.full(n.account, ColdStarts, 1)
			if full == nil {
				return n
			}
			if full.Scope == Total {
				return nil
			}
			if full.Scope == User {
				break
			}
		}
	}
	return nil
}
