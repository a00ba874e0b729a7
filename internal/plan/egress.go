package plan

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

// egress returns what the call may reach.
func (c *Call) egress(network bool) (dockerexec.Egress, error) {
	decided, err := c.cfg.Egress.Decide(policy.EgressRequest{
		Network: network, AllowedDomains: c.AllowedDomains, PackageManagers: c.PackageManagers,
		DeniedDomains: c.DeniedDomains,
	})
	domains := decided.Domains.List()
	if err != nil || len(domains) == 0 {
		return dockerexec.Egress{}, err
	}
	if c.cfg.CannotFilter != nil && !decided.Domains.Everything() {
		return dockerexec.Egress{},
			errs.Denied(
				"allowedDomains: this host cannot restrict a call to names (%v): ask for no network, or for all of it with \"*\"",
				c.cfg.CannotFilter)
	}
	if len(domains) > c.cfg.MaxDomains {
		return dockerexec.Egress{},
			errs.Invalid(
				"allowedDomains: %d patterns, with those of packageManagers; at most %d are allowed",
				len(domains), c.cfg.MaxDomains)
	}
	return dockerexec.Egress{Profile: c.profile(), Domains: domains,
		Denied: decided.Denied.List()}, nil
}

func (c *Call) profile() string {
	if c.cfg.LocalUsers[c.User.String()] {
		return profileLocal
	}
	return profileIsolated
}

// NetworkText describes what a call may reach, for a person.
func NetworkText(e dockerexec.Egress) string {
	reach := map[string]string{profileIsolated: "the public internet",
		profileLocal: "the public internet and private networks"}[e.Profile]
	switch {
	case e.Profile == "":
		return "none"
	case e.IsOpen():
		return "open: all of " + reach
	default:
		but := ""
		if len(e.Denied) > 0 {
			but = ", but not " + strings.Join(e.Denied, ", ")
		}
		return fmt.Sprintf("filtered: HTTP and HTTPS on %s, to %s%s", reach,
			strings.Join(e.Domains, ", "), but)
	}
}
