package egress

import (
	"fmt"
	"maps"
	"net/netip"

	"github.com/miekg/dns"
)

// SetUpstreams changes the resolvers of profiles, including those of open networks. Profiles that
// are not in upstreams keep theirs.
func (e *Egress) SetUpstreams(upstreams map[string][]string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	profiles, resolvers := maps.Clone(e.cfg.Profiles), map[string][]string{}
	for name, servers := range upstreams {
		p := profiles[name]
		p.Upstreams = servers
		profiles[name] = p
		if e.stacks[name] != nil {
			var err error
			if resolvers[name], err = p.upstreams(); err != nil {
				return err
			}
		}
	}
	for name, servers := range resolvers {
		if err := e.stacks[name].dns.SetUpstreams(servers); err != nil {
			return err // not for upstreams that the settings accept
		}
	}
	e.cfg.Profiles = profiles
	return nil
}

// upstreams returns the profile's resolvers.
func (p Profile) upstreams() ([]string, error) {
	if len(p.Upstreams) > 0 {
		return p.Upstreams, nil
	}
	return HostResolvers()
}

// HostResolvers returns the host's own resolvers, which a profile without resolvers uses.
func HostResolvers() ([]string, error) {
	const file = "/etc/resolv.conf"
	host, err := dns.ClientConfigFromFile(file)
	if err != nil {
		return nil, fmt.Errorf(
			"docker.localDnsServers is empty, and the host's own resolvers cannot be read: %w", err)
	}
	servers := usableServers(host.Servers)
	if len(servers) == 0 {
		return nil, fmt.Errorf("docker.localDnsServers is empty, and %s names no resolver", file)
	}
	return servers, nil
}

// usableServers returns the servers of a resolv.conf that can be asked: link-local ones cannot. The
// unspecified address is the host itself there (resolv.conf(5)).
func usableServers(listed []string) (servers []string) {
	for _, s := range listed {
		addr, err := netip.ParseAddr(s)
		if addr.IsUnspecified() {
			addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		if err == nil && addr.Zone() == "" && !addr.IsMulticast() {
			servers = append(servers, addr.String())
		}
	}
	return servers
}
