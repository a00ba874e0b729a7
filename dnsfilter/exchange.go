package dnsfilter

import (
	"context"
	"fmt"

	"github.com/miekg/dns"
)

// SetUpstreams replaces the resolvers. The answers of the earlier ones are forgotten, and what they
// are being asked is asked of the new ones instead. An error changes nothing.
func (s *Server) SetUpstreams(specs []string) error {
	upstreams, err := s.config.parseUpstreams(specs)
	if err != nil {
		return fmt.Errorf("cannot change the upstreams: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("cannot change the upstreams: %w", errClosed)
	}
	s.resolver.Swap(newResolver(s, upstreams)).close()
	return nil
}

// Ask asks one upstream, in the form of Config.Upstreams, for the address of a name, as a Server
// would. It returns the upstream's response code, such as NOERROR or NXDOMAIN: any code means that
// the upstream answers. ctx bounds it.
func Ask(ctx context.Context, spec, name string) (rcode string, err error) {
	u, err := parseUpstream(spec)
	if err != nil {
		return "", err
	}
	defer u.idle.close()
	query := new(dns.Msg)
	query.SetQuestion(dns.Fqdn(name), dns.TypeA)
	query.SetEdns0(maxPayload, false)
	reply, err := u.exchange(ctx, query)
	if err != nil {
		return "", err
	}
	return dns.RcodeToString[reply.Rcode], nil
}
