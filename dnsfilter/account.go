package dnsfilter

import (
	"sync"
	"weak"

	"github.com/daycare-run/sandbox/internal/fair"
)

// accounts are the rates of users: each is for all endpoints of a user together, for as long as one
// of them exists.
type accounts struct {
	mu      sync.Mutex
	byUser  map[string]weak.Pointer[fair.Rate]
	sweepAt int // at this size, rates that no endpoint has any more are forgotten
}

const minSweep = 256

// of returns the rate of an endpoint's user, without a lock after the first time.
func (a *accounts) of(ep *Endpoint) *fair.Rate {
	if known := ep.account.Load(); known != nil {
		return known
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	found := a.byUser[ep.User].Value()
	if found == nil {
		if len(a.byUser) >= max(a.sweepAt, minSweep) {
			for user, there := range a.byUser {
				if there.Value() == nil {
					delete(a.byUser, user)
				}
			}
			a.sweepAt = 2 * len(a.byUser)
		}
		found = new(fair.Rate)
		a.byUser[ep.User] = weak.Make(found)
	}
	ep.account.CompareAndSwap(nil, found)
	return ep.account.Load()
}
