package sandbox

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/egress"
	"github.com/daycare-run/sandbox/internal/egress/gateway"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
)

// The profiles.
const (
	profileIsolated = "isolated"
	profileLocal    = "local"
)

// egress decides what a call may reach.
func (s *Service) egress(box Sandbox, network bool, a ask) (dockerexec.Egress, error) {
	cfg := s.cfg()
	decided, err := cfg.Egress.Decide(policy.EgressRequest{
		Network: network, AllowedDomains: a.domains, PackageManagers: a.managers, DeniedDomains: a.less.DeniedDomains,
	})
	if err != nil || decided.Mode() == policy.EgressBlocked {
		return dockerexec.Egress{}, err
	}
	if cfg.CannotFilter != nil && decided.Mode() == policy.EgressFiltered {
		return dockerexec.Egress{}, errs.Denied("allowedDomains: this host cannot hold a call to names (%v): ask for no network, or for all of it with \"*\"", cfg.CannotFilter)
	}
	domains := decided.Domains.List()
	if len(domains) > cfg.MaxDomains {
		return dockerexec.Egress{}, errs.Invalid("allowedDomains: %d patterns, with those of packageManagers; at most %d are allowed", len(domains), cfg.MaxDomains)
	}
	profile := profileIsolated
	if cfg.LocalUsers[box.User.id] {
		profile = profileLocal
	}
	return dockerexec.Egress{Profile: profile, Domains: domains, Denied: decided.Denied.List()}, nil
}

// networkText is what there is to say about it.
func networkText(e dockerexec.Egress) string {
	reach := map[string]string{profileIsolated: "the public internet", profileLocal: "the public internet and private networks"}[e.Profile]
	switch {
	case e.Profile == "":
		return "none"
	case len(e.Domains) == 1 && e.Domains[0] == "*":
		return "open: all of " + reach
	default:
		but := ""
		if len(e.Denied) > 0 {
			but = ", but not " + strings.Join(e.Denied, ", ")
		}
		return fmt.Sprintf("filtered: HTTP and HTTPS on %s, to %s%s", reach, strings.Join(e.Domains, ", "), but)
	}
}

// Outside is the egress of containers. It is a dockerexec.Networks.
type Outside struct {
	*egress.Egress
	// Program is the file of the service's own program, and Dir a folder on the engine's host, for gateways.
	Program, Dir string
}

// Gateway says what a network's gateway is made with.
func (o Outside) Gateway(n dockerexec.Network) (dockerexec.Gateway, bool, error) {
	cfg, wanted := o.GatewayConfig(network(n))
	if !wanted {
		return dockerexec.Gateway{}, false, nil
	}
	argument, err := cfg.Argument()
	return dockerexec.Gateway{
		Program: o.Program, Arguments: []string{"gateway", argument},
		Dir: filepath.Join(o.Dir, n.Profile), Sysctls: gateway.Sysctls(),
	}, true, err
}

func network(n dockerexec.Network) egress.Network {
	return egress.Network{
		Profile: n.Profile, Bridge: n.Bridge, Subnet: n.Subnet, Gateway: n.Gateway, GatewayID: n.GatewayID, GatewayDir: n.GatewayDir,
	}
}

// Open is for dockerexec.Networks, as are Add, Bind.
func (o Outside) Open(ctx context.Context, n dockerexec.Network, guests []dockerexec.Guest) error {
	var known []egress.Guest
	for _, guest := range guests {
		if g, err := asGuest(guest); err == nil {
			known = append(known, g)
		}
	}
	return o.Egress.Open(ctx, network(n), known)
}

// Add registers a container that will be made.
func (o Outside) Add(spec dockerexec.Spec) (netip.Addr, error) {
	t, err := tenant(spec)
	if err != nil {
		return netip.Addr{}, err
	}
	return o.Egress.Add(spec.Egress.Profile, t)
}

// Bind opens the way of a container.
func (o Outside) Bind(guest dockerexec.Guest) error {
	g, err := asGuest(guest)
	if err != nil {
		return err
	}
	return o.Egress.Bind(guest.Spec.Egress.Profile, g)
}

func asGuest(guest dockerexec.Guest) (egress.Guest, error) {
	t, err := tenant(guest.Spec)
	return egress.Guest{Tenant: t, Addr: guest.Addr, MAC: guest.MAC, PID: guest.PID}, err
}

// tenant reads the policy out of a Spec, which may have come from a container's labels.
func tenant(spec dockerexec.Spec) (egress.Tenant, error) {
	domains, err := policy.ParseDomains(spec.Egress.Domains)
	if err != nil {
		return egress.Tenant{}, fmt.Errorf("the names that %s may reach cannot be read: %w", spec.ContainerName(), err)
	}
	denied, err := policy.ParseDenied(spec.Egress.Denied)
	if err != nil {
		return egress.Tenant{}, fmt.Errorf("the names that %s may not reach cannot be read: %w", spec.ContainerName(), err)
	}
	return egress.Tenant{User: spec.User, Container: spec.ContainerName(), Domains: domains, Denied: denied}, nil
}
