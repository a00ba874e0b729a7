package quota

import (
	"time"

	"golang.org/x/time/rate"
)

// maxRates is how many holders' rates are remembered at least. Beyond that, holders that have not
// asked lately are forgotten whenever there are twice as many as were left the last time.
const maxRates = 4096

// Ask counts a request of the account's user, of its token, or of both. The error is an *Exceeded.
// After a pause, twice as many requests as in a second may come at once.
func (l *Ledger) Ask(a Account) error {
	if l == nil {
		return nil
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, scope := range []Scope{User, OfToken} {
		name := a.name(scope)
		bound, setting := l.bound(a, scope, Requests)
		if name == "" || bound == 0 {
			continue
		}
		if !l.rate(holder{scope, name}, bound, now).AllowN(now, 1) {
			return &Exceeded{Resource: Requests, Scope: scope, Name: name, Bound: bound,
				Setting: setting, Retry: time.Second}
		}
	}
	return nil
}

// rate finds or makes a holder's limiter; the lock is held.
func (l *Ledger) rate(h holder, bound int, now time.Time) *rate.Limiter {
	if r := l.rates[h]; r != nil {
		if r.Limit() != rate.Limit(bound) { // the token's own bound has changed
			r.SetLimitAt(now, rate.Limit(bound))
			r.SetBurstAt(now, 2*bound)
		}
		return r
	}
	if len(l.rates) >= max(l.sweepAt, maxRates) {
		for old, r := range l.rates {
			if r.TokensAt(now) >= float64(r.Burst()) {
				delete(l.rates, old)
			}
		}
		l.sweepAt = 2 * len(l.rates)
	}
	r := rate.NewLimiter(rate.Limit(bound), 2*bound)
	l.rates[h] = r
	return r
}
