package sandbox

import (
	"fmt"
	"strings"

	"github.com/daycare-run/sandbox/dockerexec"
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
