package dnsfilter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/miekg/dns"
)

// questionFor returns the question for a name as Resolve takes it.
func questionFor(name string, qtype uint16) (*question, error) {
	q := &question{qtype: qtype, class: dns.ClassINET}
	wire := make([]byte, 2+maxName)
	n, err := dns.PackDomainName(dns.Fqdn(name), wire, 0, nil, false)
	if err != nil {
		return nil, fmt.Errorf("it is no name: %w", errdefs.ErrInvalidArgument)
	}
	if _, ok := q.parseName(wire[:n]); !ok || !q.host || string(q.text()) != name || name == "" {
		return nil, fmt.Errorf("it is no host name in lower case: %w", errdefs.ErrInvalidArgument)
	}
	return q, nil
}

// find returns the entry for a question from the cache, or else from upstreams, for which it waits.
// When ctx ends it returns at once, but the lookup counts until the upstreams are no longer asked.
func (s *Server) find(ctx context.Context, who *Client, q *question) (*entry, error) {
	key := q.setKey()
	if e := s.resolver.Load().cache.get(key, s.since(s.config.Now())); e != nil {
		return e, nil
	}
	if !s.lookups.Take(who.User, 1) {
		return nil, errBusy
	}
	var e *entry
	var err error
	ended := make(chan struct{})
	fetch := func() {
		e, err = s.fetch(context.WithoutCancel(ctx), who, string(key), q.qtype)
		s.lookups.Give(who.User, 1)
		close(ended)
	}
	if !s.run(fetch) {
		s.lookups.Give(who.User, 1)
		return nil, errClosed
	}
	select {
	case <-ended:
		return e, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// run runs f on a goroutine for which Shutdown waits. It reports false after Shutdown.
func (s *Server) run(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.wg.Go(f)
	return true
}

// fetch asks the upstreams, or waits for a caller that asks them the same, and keeps their answer.
// If others take their place meanwhile, those are asked.
func (s *Server) fetch(ctx context.Context, who *Client, key string,
	qtype uint16) (*entry, error) {
	for {
		r := s.resolver.Load()
		e, err := r.fetch(ctx, who, key, qtype)
		if !errors.Is(err, errClosed) || r == s.resolver.Load() {
			return e, err
		}
	}
}

func (r *resolver) fetch(ctx context.Context, who *Client, key string,
	qtype uint16) (*entry, error) {
	return r.flights.do(ctx, key, r.config.Timeout, func(ctx context.Context) *entry {
		// A caller that looked in the cache just before another lookup ended finds that one's
		// result here.
		if e := r.cache.get([]byte(key), r.server.since(r.config.Now())); e != nil {
			return e
		}
		f, err := r.lookup(ctx, key[keyPrefix:], qtype)
		e := &entry{key: key, owner: who.User}
		if err == nil {
			e.records, err = pack(f.records)
		}
		if ctx.Err() == context.Canceled { // by close: that says nothing about the name
			return nil
		}
		now := r.server.since(r.config.Now())
		if err != nil {
			// RFC 9520 wants failures kept too: not for long, but long enough to spare upstreams
			// that are down.
			e.failed, e.rcode, e.ttl = true, dns.RcodeServerFailure, minTTL
		} else {
			e.rcode, e.count, e.struck = f.rcode, len(f.records), f.struck
			e.ttl = lifetime(f)
			for _, rr := range f.records {
				if addr, isAddr := addrOf(rr); isAddr {
					e.addrs = append(e.addrs, addr)
				}
			}
			e.addrs = slices.Clip(e.addrs)
		}
		e.expires = now + int64(e.ttl)
		r.cache.put(e)
		return e
	})
}

// lifetime returns how long an answer is kept, within bounds.
func lifetime(f found) time.Duration {
	limit := maxTTL
	if len(f.records) == 0 {
		limit = maxNegativeTTL
	}
	return min(max(time.Duration(f.ttl)*time.Second, minTTL), limit)
}

// answered reports the addresses that a client is about to learn.
func (who *Client) answered(e *entry, now int64) {
	if who.Answered != nil && len(e.addrs) > 0 {
		who.Answered(e.name(), e.addrs, time.Duration(e.left(now))*time.Second)
	}
}
