package dnsfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"github.com/rs/zerolog"
)

// resolver asks the upstreams of one profile.
type resolver struct {
	upstreams atomic.Pointer[[]*upstream]
	admits    func(netip.Addr) bool
	perTry    time.Duration
	now       func() time.Time
	forwarded *atomic.Uint64
	log       zerolog.Logger
}

// failureMemory is how long an upstream that failed comes after the others.
const failureMemory = 10 * time.Second

// rounds is how often each upstream is asked: a datagram may be lost.
const rounds = 2

// exchange asks one upstream after the other until one answers: with a name's records, or that there
// are none. An upstream that answers with an error is no worse than before for it; the name may be.
func (r *resolver) exchange(ctx context.Context, name string, qtype uint16) (*dns.Msg, error) {
	query := new(dns.Msg)
	query.SetQuestion(name, qtype)
	query.SetEdns0(maxPayload, false)
	var faults []error
	order := r.order()
	for range rounds {
		var again []*upstream
		for _, u := range order {
			reply, err := r.try(ctx, u, query)
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

// try asks one upstream and remembers whether it could.
func (r *resolver) try(ctx context.Context, u *upstream, query *dns.Msg) (*dns.Msg, error) {
	query = query.Copy()
	query.Id = dns.Id()
	r.forwarded.Add(1)
	trying, cancel := context.WithTimeout(ctx, r.perTry)
	defer cancel()
	reply, err := u.exchange(trying, query)
	if err == nil {
		if u.retry.Swap(0) != 0 {
			r.log.Info().Str("upstream", u.spec).Msg("upstream resolver answers again")
		}
		return reply, nil
	}
	if ctx.Err() == nil && u.retry.Swap(r.now().Add(failureMemory).UnixNano()) == 0 {
		r.log.Warn().Str("upstream", u.spec).Err(err).Msg("upstream resolver fails")
	}
	return nil, fmt.Errorf("%s: %w", u.spec, err)
}

// order returns the upstreams in the order in which to try them: as configured, but those that
// failed lately at the end. When that time has passed, one question finds out for all.
func (r *resolver) order() []*upstream {
	now := r.now().UnixNano()
	all := *r.upstreams.Load()
	order := make([]*upstream, 0, len(all))
	var failed []*upstream
	for _, u := range all {
		retry := u.retry.Load()
		if retry == 0 || retry <= now && u.retry.CompareAndSwap(retry, now+int64(failureMemory)) {
			order = append(order, u)
		} else {
			failed = append(failed, u)
		}
	}
	return append(order, failed...)
}

func (r *resolver) close() { closeIdle(*r.upstreams.Load()) }

func closeIdle(upstreams []*upstream) {
	for _, u := range upstreams {
		u.idle.close()
	}
}
