package dnsfilter

import (
	"sync"
	"weak"
)

// accounts are the rates of users: of all endpoints that one has together, for as long as there is one of them.
type accounts struct {
	mu      sync.Mutex
	byUser  map[string]weak.Pointer[bucket]
	sweepAt int // how many there are when those are forgotten that nobody has any more
}

const minSweep = 256

// of returns the rate of an endpoint's user; after the first time without a lock.
func (a *accounts) of(ep *Endpoint) *bucket {
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
		found = new(bucket)
		a.byUser[ep.User] = weak.Make(found)
	}
	ep.account.CompareAndSwap(nil, found)
	return ep.account.Load()
}
