// Package dnsfilter is the DNS server that containers ask. It answers for the names that their policy
// allows, and for no others: those are denied at once and never forwarded, so that a question carries
// nothing out. Who asks is known by the source address.
//
// A packet is read in question.go, decided in handle.go, and answered there from the cache or, by a
// goroutine of its own, from upstream resolvers: flight.go has one lookup for those who ask the same,
// chain.go follows aliases and strikes out addresses, resolver.go chooses among upstreams, and antispoofing.go has what
// makes their answers hard to forge. account.go has the rate of each user.
package dnsfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/containerd/errdefs"
	"github.com/miekg/dns"

	"github.com/daycare-run/sandbox/internal/budget"
)

// Server answers DNS questions from New's configuration, between Start and Shutdown.
type Server struct {
	config    Config
	interval  time.Duration // in which an endpoint may ask once
	profiles  map[string]*profile
	cache     *cache
	flights   flights
	forwarded atomic.Uint64
	unknown   bucket // the rate of all that nobody is registered for
	accounts  accounts
	lookups   *budget.Pool
	conns     *budget.Pool

	mu      sync.Mutex // of what follows
	started bool
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

// profile is a Profile in use.
type profile struct {
	index    uint8 // in cache keys
	resolver resolver
}

var (
	errClosed = errors.New("the DNS filter is shut down")
	errBusy   = errors.New("too many lookups wait for an upstream")
)

// New returns a server, or all faults of its configuration.
func New(config Config) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("cannot make a DNS filter: %w", err)
	}
	config = config.withDefaults()
	s := &Server{
		config:   config,
		interval: time.Second / time.Duration(config.QueriesPerSecond),
		profiles: map[string]*profile{},
		cache:    newCache(config.CacheSize),
		flights:  flights{byKey: map[string]*flight{}},
		accounts: accounts{byUser: map[string]weak.Pointer[account]{}},
		lookups:  budget.NewPool(config.MaxLookups, 0),
		conns:    budget.NewPool(config.MaxConns, 0),
	}
	for i, p := range config.Profiles {
		upstreams, err := s.parseUpstreams(p.Upstreams)
		if err != nil {
			return nil, err
		}
		made := &profile{index: uint8(i), resolver: resolver{
			admits:    p.Admits,
			perTry:    config.TryTimeout,
			now:       config.Now,
			forwarded: &s.forwarded,
			flights:   &s.flights,
			log:       config.Log.With().Str("profile", p.Name).Logger(),
		}}
		made.resolver.upstreams.Store(&upstreams)
		s.profiles[p.Name] = made
	}
	return s, nil
}

// Start answers at the configuration's sockets from then on, until Shutdown; ctx gives values alone. A server starts once,
// and not after Shutdown.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
		return errors.New("cannot start the DNS filter: it was started before")
	}
	s.started = true
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	for _, bound := range s.config.Sockets {
		for _, conn := range bound.UDP {
			s.wg.Go(func() { s.serveUDP(ctx, conn) })
		}
		s.wg.Go(func() { s.serveTCP(ctx, bound.TCP) })
	}
	return nil
}

// Shutdown ends the server: it stops answering, gives up lookups, and waits until all goroutines have
// ended, or ctx has. Called again it waits again.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.started = true
	if s.cancel != nil {
		s.cancel()
	}
	for _, bound := range s.config.Sockets {
		bound.Close()
	}
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		s.flights.close()
		s.wg.Wait()
		for _, p := range s.profiles {
			p.resolver.close()
		}
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot wait for the DNS filter to end: %w", context.Cause(ctx))
	}
}

// Forwarded returns how many questions were put to upstreams.
func (s *Server) Forwarded() uint64 { return s.forwarded.Load() }

// Known returns what Resolve would return, if that is known without asking an upstream. It does not block.
func (s *Server) Known(ep *Endpoint, name string) (addrs []netip.Addr, known bool) {
	p := s.profiles[ep.Profile]
	q, err := questionFor(name, dns.TypeA)
	if p == nil || err != nil {
		return nil, false
	}
	now := s.config.Now().UnixNano()
	e := s.cache.get(q.setKey(p.index), now)
	if e == nil || e.failed {
		return nil, false
	}
	addrs = e.addrs
	if s.config.IPv6 {
		q.qtype = dns.TypeAAAA
		six := s.cache.get(q.setKey(p.index), now)
		if six == nil || six.failed {
			return nil, false
		}
		addrs = append(addrs[:len(addrs):len(addrs)], six.addrs...)
	}
	return addrs, len(addrs) > 0
}

// Resolve returns the addresses of a name for the guard, through the same cache and upstreams as a
// question of the endpoint, and those alone that its profile admits. It does not ask whether the endpoint
// may have the name, and it is no question that is counted or reported. The name is in lower case and
// without a trailing dot. Without any address the error is of class NotFound; if that cannot be known
// now, Unavailable. The caller must not change the addresses.
func (s *Server) Resolve(ctx context.Context, ep *Endpoint, name string) ([]netip.Addr, error) {
	p := s.profiles[ep.Profile]
	if p == nil {
		return nil, fmt.Errorf("cannot resolve %q: no profile %q: %w", name, ep.Profile, errdefs.ErrInvalidArgument)
	}
	q, err := questionFor(name, dns.TypeA)
	if err != nil {
		return nil, fmt.Errorf("cannot resolve %q: %w", name, err)
	}
	e, err := s.find(ctx, ep, p, q)
	if err != nil {
		return nil, fmt.Errorf("cannot resolve %q: %w: %w", name, err, errdefs.ErrUnavailable)
	}
	addrs := e.addrs
	if s.config.IPv6 && !e.failed {
		q.qtype = dns.TypeAAAA
		if six, err := s.find(ctx, ep, p, q); err == nil {
			addrs = append(addrs[:len(addrs):len(addrs)], six.addrs...)
		}
	}
	switch {
	case len(addrs) > 0:
		return addrs, nil
	case e.failed:
		return nil, fmt.Errorf("cannot resolve %q: no upstream resolver has an answer: %w", name, errdefs.ErrUnavailable)
	case e.struck:
		return nil, fmt.Errorf("cannot resolve %q: it has private addresses only: %w", name, errdefs.ErrNotFound)
	}
	return nil, fmt.Errorf("cannot resolve %q: it has no address: %w", name, errdefs.ErrNotFound)
}
