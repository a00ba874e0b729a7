package quota

import (
	"context"
	"slices"
)

// waiter is a cold start that waits for its turn.
type waiter struct {
	account Account
	turn    chan func() // gets the function that ends the turn
}

// line holds the waiters, by user. Tokens and users are in the order of their turns: after a turn
// they go to the end.
type line struct {
	tokens, users []string
	of            map[string][]*waiter
	by            map[string]int // how many wait, by token
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
		w.of, w.by = map[string][]*waiter{}, map[string]int{}
	}
	w.of[user] = append(w.of[user], n)
	token := n.account.Token.Name
	if w.by[token]++; w.by[token] == 1 {
		w.tokens = append(w.tokens, token)
	}
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
		w.users = without(w.users, user)
	}
	token := n.account.Token.Name
	if w.by[token]--; w.by[token] == 0 {
		delete(w.by, token)
		w.tokens = without(w.tokens, token)
	}
	return true
}

func without(list []string, name string) []string {
	return slices.DeleteFunc(list, func(other string) bool { return other == name })
}

// Turn waits until a container may be made for an account: the tokens by which users come take
// turns, and so do the users of each token, however many wait for each. The turn lasts until done
// is called. The error is ctx's cause.
func (l *Ledger) Turn(ctx context.Context, a Account) (done func(), err error) {
	now := make(chan struct{})
	close(now)
	return l.SpareTurn(ctx, a, now)
}

// SpareTurn is Turn for a container that no call waits for: it comes when no call has a turn or
// waits for one. Once wanted is closed, a call waits for it after all, and it becomes a turn like
// any other.
func (l *Ledger) SpareTurn(ctx context.Context, a Account,
	wanted <-chan struct{}) (done func(), err error) {
	if l == nil {
		return func() {}, context.Cause(ctx)
	}
	n := &waiter{account: a, turn: make(chan func(), 1)}
	in := &l.spare
	select {
	case <-wanted:
		in, wanted = &l.waiting, nil
	default:
	}
	l.mu.Lock()
	in.add(n)
	l.dispatch()
	l.mu.Unlock()
	select {
	case done = <-n.turn:
		return done, nil
	case <-wanted:
		l.hurry(n)
		select {
		case done = <-n.turn:
			return done, nil
		case <-ctx.Done():
		}
	case <-ctx.Done():
	}
	l.mu.Lock()
	waited := l.waiting.remove(n) || l.spare.remove(n)
	l.mu.Unlock()
	if !waited { // the turn came at the same time
		done = <-n.turn
		done()
	}
	return nil, context.Cause(ctx)
}

// hurry moves a waiter to those that calls wait for.
func (l *Ledger) hurry(n *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spare.remove(n) { // otherwise its turn has come
		l.waiting.add(n)
		l.dispatch()
	}
}

// dispatch gives turns to the waiters that may have one; the lock is held.
func (l *Ledger) dispatch() {
	for l.give(&l.waiting) {
	}
	for l.waiting.length() == 0 && l.total(ColdStarts) == l.sparing &&
		l.sparing < max(l.limits.SpareTurns, 1) && l.give(&l.spare) {
	}
}

// give gives a turn to the next waiter in a line that may have one, and reports whether there is
// one; the lock is held.
func (l *Ledger) give(in *line) bool {
	n := l.next(in)
	if n == nil {
		return false
	}
	in.remove(n)
	if user := n.account.User; len(in.of[user]) > 0 {
		in.users = append(without(in.users, user), user)
	}
	if token := n.account.Token.Name; in.by[token] > 0 {
		in.tokens = append(without(in.tokens, token), token)
	}
	if in != &l.spare {
		n.turn <- l.hold(n.account, ColdStarts, 1, nil)
		return true
	}
	l.sparing++
	n.turn <- l.hold(n.account, ColdStarts, 1, func() { l.sparing-- })
	return true
}

// next returns the first waiter in a line, in the order of turns, that no bound holds back; the
// lock is held.
func (l *Ledger) next(in *line) *waiter {
	for _, token := range in.tokens {
		for _, user := range in.users {
			i := slices.IndexFunc(in.of[user], func(n *waiter) bool {
				return n.account.Token.Name == token
			})
			if i < 0 {
				continue
			}
			n := in.of[user][i] // the user's others by that token meet the same bounds
			full := l.full(n.account, ColdStarts, 1)
			if full == nil {
				return n
			}
			if full.Scope == Total {
				return nil
			}
		}
	}
	return nil
}
