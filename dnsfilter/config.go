package dnsfilter

import (
	"cmp"
	"crypto/x509"
	"errors"
	"net/netip"
	"time"

	"github.com/rs/zerolog"
)

// Config says how a Server behaves. Where a default is given, zero means the default.
type Config struct {
	// Sockets are where questions are answered; see Listen. Shutdown closes them.
	Sockets []Socket

	// Upstreams are the resolvers, the preferred one first: address, address:port (UDP, and TCP
	// when truncated or in doubt) or tls://host[:port], where the host is an address or a name that
	// the certificate has. Such a name is found with the host's own resolver. At least one;
	// SetUpstreams replaces them.
	Upstreams []string

	// Admits reports whether a client may learn an address; the others are struck from answers.
	// There is no default, so that a forgotten one does not let everything through.
	Admits func(netip.Addr) bool

	// Client returns the client that asks from an address, or nil if none is known there. It is
	// called for each question and returns the same pointer until the registration changes.
	Client func(netip.Addr) *Client

	// HostName is what every client calls itself, in lower case. It is answered as localhost is:
	// with the loopback's address, whatever a client may reach. Default none.
	HostName string

	// QueriesPerSecond bounds the questions of one client, which may ask those of two seconds at
	// once. All clients of a user together may ask four times as many. Default 200.
	QueriesPerSecond int

	// Timeout bounds a lookup, TryTimeout one attempt with one upstream. Default 4 s and 1 s.
	Timeout, TryTimeout time.Duration

	// CacheSize is the number of answers to keep; when it is full, the user who has most of them
	// makes room. An answer takes at most about 5 KiB, most take 300 bytes. Default 8192.
	CacheSize int

	// MaxLookups bounds the questions that wait for an upstream at once, over all users. Each has a
	// share: see fair.Pool. Default 1024.
	MaxLookups int

	// MaxConns bounds the TCP connections at once, over all users. Each has a share. Default 256.
	MaxConns int

	// IdleTimeout is how long a TCP connection may be without a question. Default 10 s.
	IdleTimeout time.Duration

	// RootCAs are the authorities that may vouch for an upstream over TLS. Default the host's.
	RootCAs *x509.CertPool

	// Decided, if set, is called for each question, unless it is about the client's own name or
	// localhost. It runs before the answer is sent, on several goroutines, and must not block.
	Decided func(Decision)

	// Now is the clock for the cache, rates and memories of failures, by the monotonic part of its
	// times, if they have one. Default time.Now.
	Now func() time.Time

	// Log receives what happens to sockets and upstreams, never what was asked.
	Log zerolog.Logger
}

const (
	burst    = 2 * time.Second // a client may ask the questions of this time at once
	userRate = 4               // a user may ask so many times what a client may

	// minTTL and maxTTL bound how long an answer is kept, and maxNegativeTTL how long it is kept
	// that there is none.
	minTTL, maxTTL, maxNegativeTTL = time.Second, time.Hour, 5 * time.Minute
)

// withDefaults returns c with defaults in place of zeros.
func (c Config) withDefaults() Config {
	c.QueriesPerSecond = cmp.Or(c.QueriesPerSecond, 200)
	c.Timeout, c.TryTimeout = cmp.Or(c.Timeout, 4*time.Second), cmp.Or(c.TryTimeout, time.Second)
	c.CacheSize = cmp.Or(c.CacheSize, 8192)
	c.MaxLookups, c.MaxConns = cmp.Or(c.MaxLookups, 1024), cmp.Or(c.MaxConns, 256)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 10*time.Second)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// validate returns all faults of a configuration with its defaults, joined, except those of
// upstreams.
func (c Config) validate() error {
	var faults []error
	for fault, is := range map[string]bool{
		"Sockets is empty": len(c.Sockets) == 0, "Client is missing": c.Client == nil,
		"Admits is missing":                     c.Admits == nil,
		"QueriesPerSecond is out of its bounds": c.QueriesPerSecond < 1 || c.QueriesPerSecond > 1e6,
	} {
		if is {
			faults = append(faults, errors.New(fault))
		}
	}
	return errors.Join(faults...)
}

// parseUpstreams parses upstreams in the form of Config.Upstreams. The error has all faults.
func (c Config) parseUpstreams(specs []string) (list []*upstream, err error) {
	if len(specs) == 0 {
		return nil, errors.New("the list Upstreams is empty")
	}
	var faults []error
	for _, spec := range specs {
		u, err := parseUpstream(spec)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if u.tls != nil {
			u.tls.RootCAs = c.RootCAs
		}
		list = append(list, u)
	}
	return list, errors.Join(faults...)
}
