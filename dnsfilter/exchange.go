package dnsfilter

import (
	"context"
	"fmt"

	"github.com/miekg/dns"
)

// SetUpstreams changes the resolvers of a profile. What is being looked up ends with the ones before; what
// they had answered is forgotten. An error changes nothing.
func (s *Server) SetUpstreams(profile string, specs []string) error {
	p := s.profiles[profile]
	if p == nil || len(specs) == 0 {
		return fmt.Errorf("cannot change the upstreams of profile %q: there is no such profile, or there are none", profile)
	}
	upstreams, err := s.parseUpstreams(specs)
	if err != nil {
		return err
	}
	before := p.resolver.upstreams.Swap(&upstreams)
	s.cache.clear()
	closeIdle(*before)
	return nil
}

func (s *Server) parseUpstreams(specs []string) ([]*upstream, error) {
	list := make([]*upstream, len(specs))
	for i, spec := range specs {
		u, err := parseUpstream(spec)
		if err != nil {
			return nil, err
		}
		if u.tls != nil {
			u.tls.RootCAs = s.config.RootCAs
		}
		list[i] = u
	}
	return list, nil
}

// Ask puts one question to an upstream, in the form of Profile.Upstreams, as a Server would: for the address
// of a name. It returns the upstream's response code, such as NOERROR or NXDOMAIN: whatever that is, the
// upstream answers. ctx bounds it.
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
