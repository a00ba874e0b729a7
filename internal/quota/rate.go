package quota

import (
	"time"

	"github.com/daycare-run/sandbox/internal/fair"
)

// maxRates is how many holders' rates are remembered at least. Beyond that, holders that have not
// asked lately are forgotten whenever there are twice as many as were left the last time.
const maxRates = 4096

// burst is the time whose requests may come at once after a pause.
const burst = 2 * time.Second

// Ask counts a request of the account's user, of its token, or of both. The error is an *Exceeded.
// After a pause, twice as many requests as in a second may come at once.
func (l *Ledger) Ask(a Account) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := int64(time.Since(l.begun))
	for _, scope := range []Scope{User, OfToken} {
		name := a.name(scope)
		bound, setting := l.bound(a, scope, Requests)
		if name == "" || bound == 0 {
			continue
		}
		if !l.rate(holder{scope, name}, now).Take(now, time.Second/time.Duration(bound), burst) {
			return &Exceeded{Resource: Requests, Scope: scope, Name: name, Bound: bound,
				Setting: setting, Retry: time.Second}
		}
	}
	return nil
}

// rate finds or makes a holder's rate; the lock is held.
func (l *Ledger) rate(h holder, now int64) *fair.Rate {
	if r := l.rates[h]; r != nil {
		return r
	}
	if len(l.rates) >= max(l.sweepAt, maxRates) {
		for old, r := range l.rates {
			if r.Rested(now) {
				delete(l.rates, old)
			}
		}
		l.sweepAt = 2 * len(l.rates)
	}
	r := new(fair.Rate)
	l.rates[h] = r
	return r
}
