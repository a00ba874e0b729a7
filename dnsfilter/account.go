package dnsfilter

import (
	"sync"
	"weak"
)

// account is what the endpoints of one user have together. It lasts as long as one of them does.
type account struct {
	rate bucket
}

// accounts finds the account of a user.
type accounts struct {
	mu      sync.Mutex
	byUser  map[string]weak.Pointer[account]
	sweepAt int // how many there are when those are forgotten that nobody has any more
}

const minSweep = 256

// of returns an endpoint's account; after the first time without a lock.
func (a *accounts) of(ep *Endpoint) *account {
	if known := ep.account.Load(); known != nil {
		return known
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	found := a.byUser[ep.owner()].Value()
	if found == nil {
		if len(a.byUser) >= max(a.sweepAt, minSweep) {
			for user, there := range a.byUser {
				if there.Value() == nil {
					delete(a.byUser, user)
				}
			}
			a.sweepAt = 2 * len(a.byUser)
		}
		found = new(account)
		a.byUser[ep.owner()] = weak.Make(found)
	}
	ep.account.CompareAndSwap(nil, found)
	return ep.account.Load()
}
