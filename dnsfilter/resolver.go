package dnsfilter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/miekg/dns"
)

// failureMemory is how long an upstream that failed comes after the others before it is probed again.
const failureMemory = 10 * time.Second

// rounds is how often each upstream is asked: a datagram may be lost.
const rounds = 2

// exchange asks one upstream after the other until one answers: with a name's records, or that there
// are none. An upstream that answers with an error is no worse than before for it; the name may be.
func (s *Server) exchange(ctx context.Context, name string, qtype uint16) (*dns.Msg, error) {
	query := new(dns.Msg)
	query.SetQuestion(name, qtype)
	query.SetEdns0(maxPayload, false)
	var faults []error
	order := s.order(ctx)
	for range rounds {
		var again []*upstream
		for _, u := range order {
			reply, err := s.try(ctx, u, query)
			if err == nil && (reply.Rcode == dns.RcodeSuccess || reply.Rcode == dns.RcodeNameError) {
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

// try asks one upstream. One that does not answer is probed: the reason may be the name, which an endpoint has chosen.
func (s *Server) try(ctx context.Context, u *upstream, query *dns.Msg) (*dns.Msg, error) {
	query = query.Copy()
	query.Id = dns.Id()
	s.forwarded.Add(1)
	trying, cancel := context.WithTimeout(ctx, s.config.TryTimeout)
	defer cancel()
	reply, err := u.exchange(trying, query)
	if err == nil {
		s.recovered(u)
		return reply, nil
	}
	if ctx.Err() == nil {
		s.probe(ctx, u)
	}
	return nil, fmt.Errorf("%s: %w", u.spec, err)
}

// probe asks an upstream in the background for what every resolver knows, and remembers whether it answers. Nobody
// else's questions decide that, so no endpoint can put an upstream after the others for all endpoints.
func (s *Server) probe(ctx context.Context, u *upstream) {
	s.flights.start(ctx, fmt.Sprintf("probe %p", u), s.config.TryTimeout, func(ctx context.Context) *entry {
		query := new(dns.Msg).SetQuestion(".", dns.TypeNS)
		if _, err := u.exchange(ctx, query.SetEdns0(maxPayload, false)); err == nil {
			s.recovered(u)
		} else if ctx.Err() != context.Canceled && u.retry.Swap(s.config.Now().Add(failureMemory).UnixNano()) == 0 {
			s.config.Log.Warn().Str("upstream", u.spec).Err(err).Msg("upstream resolver fails")
		}
		return nil
	})
}

func (s *Server) recovered(u *upstream) {
	if u.retry.Swap(0) != 0 {
		s.config.Log.Info().Str("upstream", u.spec).Msg("upstream resolver answers again")
	}
}

// order returns the upstreams in the order in which to try them: as configured, but those that failed lately at the
// end. They are probed from time to time.
func (s *Server) order(ctx context.Context) []*upstream {
	now := s.config.Now().UnixNano()
	all := *s.upstreams.Load()
	order := make([]*upstream, 0, len(all))
	var failed []*upstream
	for _, u := range all {
		retry := u.retry.Load()
		if retry == 0 {
			order = append(order, u)
			continue
		}
		failed = append(failed, u)
		if retry <= now && u.retry.CompareAndSwap(retry, now+int64(failureMemory)) {
			s.probe(ctx, u)
		}
	}
	return append(order, failed...)
}

func closeIdle(upstreams []*upstream) {
	for _, u := range upstreams {
		u.idle.close()
	}
}
