package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/policy"
)

// packages has the times of npm for a small package.
type packages struct {
	preset, open sample
	// problem says why nothing was measured.
	problem string
}

const (
	packagePreset = "node"
	// smallPackage has one dependency, which has none.
	smallPackage = "is-odd"
	// registryLimit is how long a name or an answer of the registry may take.
	registryLimit = 20 * time.Second
)

// hostAuthorities is Debian's file of the authorities that the host trusts. A local mirror may have
// a certificate of an authority that the image does not know.
const hostAuthorities = "/etc/ssl/certs/ca-certificates.crt"

// hostsWay returns the settings with which a service reaches the registry as this host does: by its
// resolvers, and at the addresses that they return, even if these do not look public.
func hostsWay(ctx context.Context) ([]string, error) {
	host, err := dns.ClientConfigFromFile("/etc/resolv.conf")
	if err != nil {
		return nil, fmt.Errorf("cannot find this host's resolvers: %w", err)
	}
	domains, err := policy.Presets{}.Resolve([]string{packagePreset})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, registryLimit)
	defer cancel()
	also := map[string]bool{}
	for _, name := range domains.List() {
		addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", name)
		if err != nil {
			continue // not every name of the preset needs to be known here
		}
		for _, addr := range addrs {
			if addr = addr.Unmap(); !(policy.Addresses{}).Admits(addr) {
				also[netip.PrefixFrom(addr, addr.BitLen()).String()] = true
			}
		}
	}
	return []string{
		"SANDBOXD_DOCKER_ISOLATED_DNS_SERVERS=" + strings.Join(host.Servers, ","),
		"SANDBOXD_EGRESS_ASK_METADATA=false",
		"SANDBOXD_EGRESS_ALSO_PUBLIC=" + strings.Join(slices.Sorted(maps.Keys(also)), ","),
	}, nil
}

// measureInstalls measures both ways by turns; each turn begins with the other one. If not even
// open egress reaches the registry, it measures nothing.
func (s *service) measureInstalls(ctx context.Context, found *packages) error {
	if _, err := s.api.Put(ctx, boxID, travelling(boxID)); err != nil {
		return err
	}
	authorities, err := os.ReadFile(hostAuthorities)
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.inHome(caFile), authorities, 0o644); err != nil {
		return err
	}
	preset, open := outgoing(nil), outgoing(anywhere)
	preset.PackageManagers = []string{packagePreset}
	if _, err := s.install(ctx, open); err != nil {
		if ctx.Err() != nil {
			return err
		}
		s.say("%s: npm does not reach its registry: %v", s.runtime, err)
		found.problem = "npm cannot fetch a package on this host, not even with open egress"
		return nil
	}
	if _, err := s.install(ctx, preset); err != nil {
		return err
	}
	ways := []func() error{
		func() error { return found.preset.add(s.install(ctx, preset)) },
		func() error { return found.open.add(s.install(ctx, open)) },
	}
	for turn := range s.settings.installs {
		for i := range ways {
			if err := ways[(turn+i)%len(ways)](); err != nil {
				return err
			}
		}
		s.say("%s: npm install, %d of %d: %s ms, open %s ms", s.runtime, turn+1, s.settings.installs, millis(found.preset[turn]), millis(found.open[turn]))
	}
	return nil
}

// install times one npm install into an empty directory, with an empty cache.
func (s *service) install(ctx context.Context, call types.Exec) (time.Duration, error) {
	call.Argv = []string{"sh", "-c", "rm -rf /tmp/project && mkdir /tmp/project"}
	if _, err := s.call(ctx, boxID, call); err != nil {
		return 0, err
	}
	call.Argv = []string{
		"npm", "install", "--prefix", "/tmp/project", "--cache", "/tmp/project/cache", "--no-audit", "--no-fund", "--no-update-notifier",
		"--fetch-retries", "0", "--fetch-timeout", fmt.Sprint(registryLimit.Milliseconds()), smallPackage,
	}
	call.Env = map[string]string{"NODE_EXTRA_CA_CERTS": "/home/" + caFile}
	begun := time.Now()
	_, err := s.call(ctx, boxID, call)
	return time.Since(begun), err
}
