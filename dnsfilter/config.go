package dnsfilter

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/rs/zerolog"
)

// Config says how a Server behaves. Where a default is given, zero means the default.
type Config struct {
	// Sockets are where questions are answered; see Listen. Shutdown closes them.
	Sockets []Socket

	// Profiles are the ways to resolve names, one of which each Endpoint has. At least one.
	Profiles []Profile

	// Endpoint returns who asks from an address, or nil when nobody is known there. It is called for
	// each question and answers the same pointer until the registration changes.
	Endpoint func(netip.Addr) *Endpoint

	// IPv6 says that the networks have IPv6, so that AAAA is answered as A is.
	IPv6 bool

	// QueriesPerSecond bounds the questions of one endpoint; Burst those at once. The endpoints of a user may ask
	// four times as many together. Default 200 and 400.
	QueriesPerSecond, Burst int

	// Timeout bounds a lookup, TryTimeout one attempt with one upstream. Default 4 s and 1 s.
	Timeout, TryTimeout time.Duration

	// MinTTL and MaxTTL bound how long an answer is kept, and MaxNegativeTTL how long it is kept that
	// there is none. Default 1 s, 1 h and 5 min.
	MinTTL, MaxTTL, MaxNegativeTTL time.Duration

	// CacheSize is the number of answers to keep; when it is full, who has most of them makes room.
	// One takes at most about 5 KiB, most take 300 bytes. Default 8192.
	CacheSize int

	// MaxLookups bounds the questions that wait for an upstream at once, over all users. Each has a
	// share: see pool. Default 1024.
	MaxLookups int

	// MaxConns bounds the TCP connections at once, over all users. Each has a share. Default 256.
	MaxConns int

	// IdleTimeout is how long a TCP connection may be without a question. Default 10 s.
	IdleTimeout time.Duration

	// RootCAs are who may vouch for an upstream over TLS. Default the host's.
	RootCAs *x509.CertPool

	// Decided, if set, is called for each question. It runs before the answer is sent, on several
	// goroutines, and must not block.
	Decided func(Decision)

	// Answered, if set, gets the addresses that an endpoint is about to learn for a name, and for how
	// long they are good. It runs as Decided does, and leaves addrs as it is.
	Answered func(ep, name string, addrs []netip.Addr, ttl time.Duration)

	// Now is the clock for the cache, rates and memories of failures. Default time.Now.
	Now func() time.Time

	// Log receives what happens to sockets and upstreams, never what was asked.
	Log zerolog.Logger
}

// Profile is a way to resolve names.
type Profile struct {
	// Name is what a Endpoint calls it.
	Name string

	// Upstreams are the resolvers, the preferred one first: address, address:port (UDP, and TCP when
	// truncated) or tls://host[:port], where the host is an address or a name that the certificate
	// has. Such a name is found with the host's own resolver. At least one.
	Upstreams []string

	// Admits reports whether an endpoint may learn an address; the others are struck from answers.
	// There is no default, so that a forgotten one does not let everything through.
	Admits func(netip.Addr) bool
}

const (
	minPool     = 8   // of which one user alone gets two
	userRate    = 4   // the questions of a user are so many times those of an endpoint
	maxProfiles = 255 // a profile is one byte of a cache key
)

// withDefaults returns c with defaults in place of zeros.
func (c Config) withDefaults() Config {
	setDefault(&c.QueriesPerSecond, 200)
	setDefault(&c.Burst, 400)
	setDefault(&c.Timeout, 4*time.Second)
	setDefault(&c.TryTimeout, time.Second)
	setDefault(&c.MinTTL, time.Second)
	setDefault(&c.MaxTTL, time.Hour)
	setDefault(&c.MaxNegativeTTL, 5*time.Minute)
	setDefault(&c.CacheSize, 8192)
	setDefault(&c.MaxLookups, 1024)
	setDefault(&c.MaxConns, 256)
	setDefault(&c.IdleTimeout, 10*time.Second)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

func setDefault[T int | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// Validate returns all faults of the configuration, joined.
func (c Config) Validate() error {
	c = c.withDefaults()
	var faults []error
	add := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if len(c.Sockets) == 0 {
		add("Sockets is empty")
	}
	if c.Endpoint == nil {
		add("Endpoint is missing")
	}
	for _, bound := range []struct {
		name            string
		value, min, max time.Duration
	}{
		{"Timeout", c.Timeout, time.Millisecond, time.Minute},
		{"TryTimeout", c.TryTimeout, time.Millisecond, c.Timeout},
		{"MinTTL", c.MinTTL, time.Second, c.MaxTTL},
		{"MaxTTL", c.MaxTTL, time.Second, 7 * 24 * time.Hour},
		{"MaxNegativeTTL", c.MaxNegativeTTL, c.MinTTL, 7 * 24 * time.Hour},
		{"IdleTimeout", c.IdleTimeout, time.Millisecond, time.Hour},
		{"QueriesPerSecond", time.Duration(c.QueriesPerSecond), 1, 1e6},
		{"Burst", time.Duration(c.Burst), 1, 1e6},
		{"CacheSize", time.Duration(c.CacheSize), 2, 1 << 24},
		{"MaxLookups", time.Duration(c.MaxLookups), minPool, 1 << 20},
		{"MaxConns", time.Duration(c.MaxConns), minPool, 1 << 16},
	} {
		if bound.value < bound.min || bound.value > bound.max {
			add("%s is out of its bounds", bound.name)
		}
	}
	return errors.Join(append(faults, c.checkProfiles()...)...)
}

func (c Config) checkProfiles() (faults []error) {
	if len(c.Profiles) == 0 || len(c.Profiles) > maxProfiles {
		faults = append(faults, fmt.Errorf("%d profiles: want 1 to %d", len(c.Profiles), maxProfiles))
	}
	names := map[string]bool{}
	for _, p := range c.Profiles {
		if p.Name == "" || names[p.Name] {
			faults = append(faults, fmt.Errorf("profile %q: its name is empty or taken", p.Name))
		}
		names[p.Name] = true
		if p.Admits == nil {
			faults = append(faults, fmt.Errorf("profile %q: Admits is missing", p.Name))
		}
		if len(p.Upstreams) == 0 {
			faults = append(faults, fmt.Errorf("profile %q: Upstreams is empty", p.Name))
		}
		for _, spec := range p.Upstreams {
			if _, err := parseUpstream(spec); err != nil {
				faults = append(faults, fmt.Errorf("profile %q: %w", p.Name, err))
			}
		}
	}
	return faults
}
