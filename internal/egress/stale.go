package egress

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/rs/zerolog"
	"github.com/vishvananda/netlink"

	"github.com/daycare-run/sandbox/internal/egress/rules"
)

// Rules outlive the service that made them, and drop packets from their subnet wherever it is used
// next.

// removeStaleRules removes the tables of services whose bridges are gone.
func removeStaleRules(log zerolog.Logger) error {
	claims, err := rules.Claims(0)
	if err != nil {
		return err
	}
	for _, c := range claims {
		if slices.ContainsFunc(c.Bridges, isThere) {
			continue
		}
		log.Warn().Str("table", c.Table).Strs("bridges", c.Bridges).
			Msg("removing the rules of a network that is gone")
		err = errors.Join(err, rules.RemoveTables(0, c.Table))
	}
	return err
}

// isThere reports whether an interface exists, or may exist.
func isThere(name string) bool {
	_, err := netlink.LinkByName(name)
	missing := netlink.LinkNotFoundError{}
	return !errors.As(err, &missing)
}

// claimed returns the subnets of other services' networks, including those whose bridges are down.
func (e *Egress) claimed() (subnets []netip.Prefix, err error) {
	if e.unfiltered != nil {
		return nil, nil
	}
	claims, err := rules.Claims(0)
	for _, c := range claims {
		if !strings.HasPrefix(c.Table, e.cfg.Name+"-") {
			subnets = append(subnets, c.Subnets...)
		}
	}
	return subnets, err
}
