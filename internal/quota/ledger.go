package quota

import (
	"sync"
	"time"

	"github.com/daycare-run/sandbox/internal/fair"
)

// Ledger counts what is in use. It is safe for concurrent use. A nil Ledger bounds nothing.
type Ledger struct {
	begun time.Time

	mu      sync.Mutex
	limits  Limits
	used    map[holder]*[resources]int
	waiting line // calls that wait for turns
	spare   line // waiters for turns that no call waits for
	sparing int  // how many of these have a turn
	rates   map[holder]*fair.Rate
	sweepAt int // how many rates there are when idle ones are forgotten
}

// holder is the user or token that has something; in scope Total, it has no name.
type holder struct {
	scope Scope
	name  string
}

// New returns a ledger in which nothing is in use.
func New(limits Limits) *Ledger {
	return &Ledger{begun: time.Now(), limits: limits, used: map[holder]*[resources]int{},
		rates: map[holder]*fair.Rate{}}
}

// Use applies limits to what is asked for from now on. What is in use already stays.
func (l *Ledger) Use(limits Limits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limits = limits
	clear(l.rates)
	l.dispatch()
}

// Take takes n of a resource until release is called; calling it more than once does no harm. The
// error is an *Exceeded.
func (l *Ledger) Take(a Account, r Resource, n int) (release func(), err error) {
	if l == nil {
		return func() {}, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if full := l.full(a, r, n); full != nil {
		return nil, full
	}
	return l.hold(a, r, n, nil), nil
}

// Hold counts what is there already until release is called, whatever the bounds are.
func (l *Ledger) Hold(a Account, r Resource, n int) (release func()) {
	if l == nil {
		return func() {}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hold(a, r, n, nil)
}

// hold counts; the lock is held, and so it is when release calls also, if that is not nil.
func (l *Ledger) hold(a Account, r Resource, n int, also func()) (release func()) {
	l.count(a, r, n)
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.count(a, r, -n)
		if also != nil {
			also()
		}
		if r == ColdStarts {
			l.dispatch()
		}
	})
}

func (l *Ledger) count(a Account, r Resource, n int) {
	for _, h := range a.holders() {
		used := l.used[h]
		if used == nil {
			used = &[resources]int{}
			l.used[h] = used
		}
		if used[r] += n; *used == ([resources]int{}) {
			delete(l.used, h)
		}
	}
}

// holders returns the holders that have what is taken for an account.
func (a Account) holders() []holder {
	list := []holder{{scope: Total}}
	if a.User != "" {
		list = append(list, holder{User, a.User})
	}
	if a.Token.Name != "" {
		list = append(list, holder{OfToken, a.Token.Name})
	}
	return list
}

// full returns the first bound that n more would exceed, or nil; the lock is held.
func (l *Ledger) full(a Account, r Resource, n int) *Exceeded {
	for _, scope := range Scopes() {
		h := holder{scope, a.name(scope)}
		bound, setting := l.bound(a, scope, r)
		if bound == 0 || scope != Total && h.name == "" {
			continue
		}
		var used int
		if u := l.used[h]; u != nil {
			used = u[r]
		}
		if used+n > bound {
			return &Exceeded{Resource: r, Scope: scope, Name: h.name, Bound: bound,
				Setting: setting, Retry: r.retryAfter()}
		}
	}
	return nil
}

func (a Account) name(scope Scope) string {
	switch scope {
	case User:
		return a.User
	case OfToken:
		return a.Token.Name
	}
	return ""
}

// bound returns the bound of a scope and the setting that it comes from; 0 means none. The lock is
// held.
func (l *Ledger) bound(a Account, scope Scope, r Resource) (bound int, setting string) {
	switch scope {
	case User:
		return l.limits.PerUser.of(r), "quotas.perUser." + r.String()
	case Total:
		return l.limits.Total.of(r), "quotas.total." + r.String()
	}
	own := a.Token.Own.of(r)
	if a.Token.Some {
		bound = l.limits.PerToken.of(r)
	}
	if own != 0 && (bound == 0 || own < bound) {
		return own, "quotas." + r.String() + " of the token in tcp.tokensFile"
	}
	return bound, "quotas.perToken." + r.String()
}

// Stats are the current numbers.
type Stats struct {
	// InUse is what is in use in total, by resource.
	InUse [resources]int
	// Waiting is how many cold starts that calls wait for have not had their turn yet.
	Waiting int
}

// Stats returns the current numbers.
func (l *Ledger) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Stats{Waiting: l.waiting.length()}
	if used := l.used[holder{scope: Total}]; used != nil {
		s.InUse = *used
	}
	return s
}

// total returns how many of a resource are in use in total; the lock is held.
func (l *Ledger) total(r Resource) int {
	if used := l.used[holder{scope: Total}]; used != nil {
		return used[r]
	}
	return 0
}
