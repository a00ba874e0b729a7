package dnsfilter

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/daycare-run/sandbox/internal/fair"
)

// Client is a container that asks one Server. It is made when the container is registered, with
// its policy, and never changes.
type Client struct {
	// ID names it in decisions.
	ID string

	// User is the user whose client it is. All clients of a user share the user's limits.
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

	rate    fair.Rate
	account atomic.Pointer[fair.Rate] // its user's, once it was asked for
}

func (who *Client) allows(name string) bool {
	return who.Open || who.Allows != nil && name != "" && who.Allows(name)
}
