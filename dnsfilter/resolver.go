package dnsfilter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/miekg/dns"
)

// resolver is a list of upstreams with their answers and the lookups under way. It is exchanged as
// a whole, so no answer of earlier upstreams is kept, or given as one of theirs.
type resolver struct {
	server    *Server
	config    *Config // the server's
	upstreams []*upstream
	cache     *cache
	flights   flights
}

func newResolver(s *Server, upstreams []*upstream) *resolver {
	return &resolver{
		server: s, config: &s.config, upstreams: upstreams,
		cache: newCache(s.config.CacheSize), flights: flights{byKey: map[string]*flight{}},
	}
}

// close ends all lookups, which then have no result, and waits for them.
func (r *resolver) close() {
	r.flights.close()
	for _, u := range r.upstreams {
		u.idle.close()
	}
}

// failureMemory is how long an upstream that failed comes after the others before it is probed
// again.
const failureMemory = 10 * time.Second

// rounds is how many times each upstream is asked: a datagram may be lost.
const rounds = 2

// exchange asks one upstream after the other until one answers: with a name's records, or that
// there are none. An answer with an error does not count against the upstream: the name may be the
// reason.
func (r *resolver) exchange(ctx context.Context, name string, qtype uint16) (*dns.Msg, error) {
	query := new(dns.Msg)
	query.SetQuestion(name, qtype)
	query.SetEdns0(maxPayload, false)
	var faults []error
	order := r.order(ctx)
	for range rounds {
		var again []*upstream
		for _, u := range order {
			reply, err := r.try(ctx, u, query)
			if err == nil && (reply.Rcode == dns.RcodeSuccess ||
				reply.Rcode == dns.RcodeNameError) {
				return reply, nil
			}
			if ctx.Err() != nil {
				return nil, errors.Join(append(faults, ctx.Err())...)
			}
			if err == nil {
				err = fmt.Errorf("%s: %s", u.spec, dns.RcodeToString[reply.Rcode])
			} else {
				again = append(again, u)
			}
			faults = append(faults, err)
		}
		order = again
	}
	return nil, errors.Join(faults...)
}

// try asks one upstream. If it does not answer it is probed: the reason may be the name, which an
// client has chosen.
func (r *resolver) try(ctx context.Context, u *upstream, query *dns.Msg) (*dns.Msg, error) {
	query = query.Copy()
	query.Id = dns.Id()
	r.server.forwarded.Add(1)
	trying, cancel := context.WithTimeout(ctx, r.config.TryTimeout)
	defer cancel()
	reply, err := u.exchange(trying, query)
	if err == nil {
		r.recovered(u)
		return reply, nil
	}
	if ctx.Err() == nil {
		r.probe(ctx, u)
	}
	return nil, fmt.Errorf("%s: %w", u.spec, err)
}

// probe asks an upstream in the background for what every resolver knows, and remembers whether it
// answers. No other questions decide that, so no client can put an upstream after the others for
// all clients.
func (r *resolver) probe(ctx context.Context, u *upstream) {
	r.flights.start(ctx, fmt.Sprintf("probe %p", u), r.config.TryTimeout,
		func(ctx context.Context) *entry {
			query := new(dns.Msg).SetQuestion(".", dns.TypeNS)
			if _, err := u.exchange(ctx, query.SetEdns0(maxPayload, false)); err == nil {
				r.recovered(u)
			} else if ctx.Err() != context.Canceled &&
				u.retry.Swap(r.server.since(r.config.Now())+int64(failureMemory)) == 0 {
				r.config.Log.Warn().Str("upstream", u.spec).Err(err).Msg("upstream resolver fails")
			}
			return nil
		})
}

func (r *resolver) recovered(u *upstream) {
	if u.retry.Swap(0) != 0 {
		r.config.Log.Info().Str("upstream", u.spec).Msg("upstream resolver answers again")
	}
}

// order returns the upstreams in the order in which to try them: as configured, but those that
// failed lately at the end. They are probed from time to time.
func (r *resolver) order(ctx context.Context) []*upstream {
	now := r.server.since(r.config.Now())
	order := make([]*upstream, 0, len(r.upstreams))
	var failed []*upstream
	for _, u := range r.upstreams {
		retry := u.retry.Load()
		if retry == 0 {
			order = append(order, u)
			continue
		}
		failed = append(failed, u)
		if retry <= now && u.retry.CompareAndSwap(retry, now+int64(failureMemory)) {
			r.probe(ctx, u)
		}
	}
	return append(order, failed...)
}
