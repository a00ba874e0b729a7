// Package dnsfilter is the DNS server that containers ask. It answers for the names that their
// policy allows, and for no others: those are denied at once and never forwarded, so that a
// question carries nothing out. The source address tells which container asks.
//
// A packet is parsed in question.go, decided in handle.go, and answered there from the cache or, by
// a goroutine of its own, from upstream resolvers: flight.go shares one lookup among those who ask
// the same, chain.go follows aliases and strikes out addresses, resolver.go chooses among
// upstreams, and antispoofing.go makes their answers hard to forge. account.go has the rate of each
// user.
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

	"github.com/daycare-run/sandbox/internal/fair"
)

// Server answers DNS questions as its configuration says, between Start and Shutdown.
type Server struct {
	config    Config
	begun     time.Time
	interval  time.Duration // in which a client may ask once
	resolver  atomic.Pointer[resolver]
	forwarded atomic.Uint64
	unknown   fair.Rate // the rate of all unknown sources
	accounts  accounts
	lookups   *fair.Pool
	conns     *fair.Pool

	mu      sync.Mutex // guards what follows
	started bool
	closed  bool
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

var (
	errClosed = errors.New("the DNS filter is shut down")
	errBusy   = errors.New("too many lookups wait for an upstream")
)

// New returns a server, or all faults of its configuration.
func New(config Config) (*Server, error) {
	config = config.withDefaults()
	upstreams, err := config.parseUpstreams(config.Upstreams)
	if err = errors.Join(config.validate(), err); err != nil {
		return nil, fmt.Errorf("cannot make a DNS filter: %w", err)
	}
	s := &Server{
		config:   config,
		begun:    config.Now(),
		interval: time.Second / time.Duration(config.QueriesPerSecond),
		accounts: accounts{byUser: map[string]weak.Pointer[fair.Rate]{}},
		lookups:  fair.NewPool(config.MaxLookups, 0),
		conns:    fair.NewPool(config.MaxConns, 0),
	}
	s.resolver.Store(newResolver(s, upstreams))
	return s, nil
}

// Start begins to answer at the configuration's sockets, until Shutdown; of ctx only the values are
// used. A server starts only once, and not after Shutdown.
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

// Shutdown ends the server: it stops answering, gives up lookups, and waits until all goroutines
// have ended, or ctx has. Called again it waits again.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.started, s.closed = true, true
	if s.cancel != nil {
		s.cancel()
	}
	for _, bound := range s.config.Sockets {
		bound.Close()
	}
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		s.resolver.Load().close()
		s.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot wait for the DNS filter to end: %w", context.Cause(ctx))
	}
}

// since returns the nanoseconds between New and a time of Config.Now, by the monotonic clock:
// setting the host's clock does not change them.
func (s *Server) since(now time.Time) int64 { return int64(now.Sub(s.begun)) }

// Forwarded returns how many questions were put to upstreams.
func (s *Server) Forwarded() uint64 { return s.forwarded.Load() }

// Known returns what Resolve would return, if that is known without asking an upstream. It does not
// block.
func (s *Server) Known(name string) (addrs []netip.Addr, known bool) {
	q, err := questionFor(name, dns.TypeA)
	if err != nil {
		return nil, false
	}
	e := s.resolver.Load().cache.get(q.setKey(), s.since(s.config.Now()))
	if e == nil || e.failed {
		return nil, false
	}
	return e.addrs, len(e.addrs) > 0
}

// Resolve returns the addresses of a name for the guard, through the same cache and upstreams as a
// question of the client, and only those that Config.Admits admits. It does not check whether the
// client may have the name, and it does not count or report a question. The name is in lower case
// and without a trailing dot. Without any address the error is of class NotFound; if that cannot be
// known now, Unavailable. The caller must not change the addresses.
func (s *Server) Resolve(ctx context.Context, who *Client, name string) ([]netip.Addr, error) {
	q, err := questionFor(name, dns.TypeA)
	if err != nil {
		return nil, fmt.Errorf("cannot resolve %q: %w", name, err)
	}
	e, err := s.find(ctx, who, q)
	if err != nil {
		return nil, fmt.Errorf("cannot resolve %q: %w: %w", name, err, errdefs.ErrUnavailable)
	}
	switch {
	case len(e.addrs) > 0:
		return e.addrs, nil
	case e.failed:
		return nil, fmt.Errorf("cannot resolve %q: no upstream resolver has an answer: %w", name,
			errdefs.ErrUnavailable)
	case e.struck:
		return nil, fmt.Errorf("cannot resolve %q: it has private addresses only: %w", name,
			errdefs.ErrNotFound)
	}
	return nil, fmt.Errorf("cannot resolve %q: it has no address: %w", name, errdefs.ErrNotFound)
}
