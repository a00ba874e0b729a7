package dnsfilter

import (
	"net/netip"
	"sync/atomic"
	"time"
)

// Endpoint is a container that asks one Server. It is made when the container is registered, with
// its policy, and never changes.
type Endpoint struct {
	// ID names it in decisions.
	ID string

	// User is the user whose endpoint it is. All endpoints of a user share the user's limits.
	User string

	// Open says that it may ask for any name; Allows is not called then.
	Open bool

	// Allows reports whether it may ask for a name: letters, digits, '-', '_' and dots, in lower
	// case and without a trailing dot. It runs for each question, on several goroutines, and must
	// not block. Nil means that nothing is allowed.
	Allows func(name string) bool

	// Answered, if set, is called with the addresses that it is about to learn for a name, and for
	// how long they are valid. It runs as Config.Decided does, and must not change addrs.
	Answered func(name string, addrs []netip.Addr, ttl time.Duration)

	rate    bucket
	account atomic.Pointer[bucket] // its user's, once it was asked for
}

func (ep *Endpoint) allows(name string) bool {
	return ep.Open || ep.Allows != nil && name != "" && ep.Allows(name)
}

// bucket is a token bucket without a lock: it holds the time at which it will be full again, as
// Server.since, as in the generic cell rate algorithm.
type bucket struct{ full atomic.Int64 }

// take takes a token if there is one. A token comes back each interval; there are at most as many
// as come back in most.
func (b *bucket) take(now int64, interval, most time.Duration) bool {
	for {
		full := b.full.Load()
		next := max(full, now) + int64(interval)
		if next-now > int64(most) {
			return false
		}
		if b.full.CompareAndSwap(full, next) {
			return true
		}
	}
}
