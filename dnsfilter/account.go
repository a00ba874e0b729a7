package dnsfilter

import (
	"sync"
	"weak"

	"github.com/daycare-run/sandbox/internal/fair"
)

// accounts are the rates of users: each is for all clients of a user together, for as long as one
// of them exists.
type accounts struct {
	mu      sync.Mutex
	byUser  map[string]weak.Pointer[fair.Rate]
	sweepAt int // at this size, rates that no client has any more are forgotten
}

const minSweep = 256

// of returns the rate of a client's user, without a lock after the first time.
func (a *accounts) of(who *Client) *fair.Rate {
	if known := who.account.Load(); known != nil {
		return known
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	found := a.byUser[who.User].Value()
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
		a.byUser[who.User] = weak.Make(found)
	}
	who.account.CompareAndSwap(nil, found)
	return who.account.Load()
}
