package policy

import (
	"errors"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Egress is what a call may reach. The names that it may reach say all of it, so nothing can contradict
// them: no names are no network, never all of it, which is * alone. The zero value is no network.
type Egress struct {
	Domains Domains
	// Denied are names among these that it may not reach after all. They are none where all names are
	// allowed, because nothing is filtered there.
	Denied Domains
}

// Allows reports whether a name may be reached, as Domains.Allows does.
func (e Egress) Allows(name string) bool { return e.Domains.Allows(name) && !e.Denied.Allows(name) }

// EgressRules are an operator's. The zero value has the built-in presets and forbids *.
type EgressRules struct {
	Presets Presets
	// AllowGlobalWildcard lets a call name *, which opens all of the network to it.
	AllowGlobalWildcard bool
}

// EgressRequest is what a call asks for.
type EgressRequest struct {
	// Network says that @network was granted to the call.
	Network bool
	// AllowedDomains are patterns for ParseDomain, PackageManagers the names of presets.
	AllowedDomains, PackageManagers []string
	// DeniedDomains are patterns that win over both.
	DeniedDomains []string
}

// maxNamed is how many names a call may write, however few of them the settings let it reach.
const maxNamed = 10_000

// Decide is the table of "Exec Allowed Domains": the names of both lists together, and whether the call
// may reach them. All faults come in one error: what cannot be read or says too little is
// errdefs.ErrInvalidArgument, what may not be errdefs.ErrPermissionDenied.
func (r EgressRules) Decide(q EgressRequest) (Egress, error) {
	for _, list := range []struct {
		field   string
		entries []string
		most    int
	}{{"allowedDomains", q.AllowedDomains, maxNamed}, {"packageManagers", q.PackageManagers, maxRestrictions}, {"deniedDomains", q.DeniedDomains, maxRestrictions}} {
		if len(list.entries) > list.most { // before each has its fault
			return Egress{}, tooMany(list.field, list.entries, list.most)
		}
	}
	named, err := ParseDomains(q.AllowedDomains)
	faults := inField("allowedDomains", err)
	preset, err := r.Presets.Resolve(q.PackageManagers)
	faults = append(faults, inField("packageManagers", err)...)
	allowed := named.Union(preset)
	denied, err := ParseDenied(q.DeniedDomains)
	faults = append(faults, inField("deniedDomains", err)...)
	switch asks := len(q.AllowedDomains)+len(q.PackageManagers) > 0; {
	case asks && !q.Network:
		faults = append(faults, errs.Denied("%s needs @network: add it to the call's permissions", q.fields()))
	case q.Network && !asks:
		faults = append(faults, errs.Invalid(`permissions: @network needs a domain: name what to reach in allowedDomains (such as "example.com") or in packageManagers (such as "node")`))
	}
	if allowed.Everything() && !r.AllowGlobalWildcard {
		faults = append(faults, errs.Denied(`allowedDomains: "*" is forbidden here: name the domains to reach, such as "example.com" or "*.example.com"`))
	}
	if len(q.DeniedDomains) > 0 && allowed.Everything() {
		faults = append(faults, errs.Invalid(`deniedDomains: nothing is filtered in a call with "*" in allowedDomains, so no name can be denied to it: name the domains to reach, or leave deniedDomains out`))
	}
	if len(faults) > 0 {
		return Egress{}, errors.Join(faults...)
	}
	left := allowed.without(denied)
	if len(left.list) == 0 && len(allowed.list) > 0 {
		return Egress{}, errs.Invalid("deniedDomains: nothing is left of what %s allows: leave @network out of the call's permissions, or deny less", q.fields())
	}
	return Egress{Domains: left, Denied: denied.below(left)}, nil
}

// fields are the fields that ask for names.
func (q EgressRequest) fields() string {
	switch {
	case len(q.PackageManagers) == 0:
		return "allowedDomains"
	case len(q.AllowedDomains) == 0:
		return "packageManagers"
	default:
		return "allowedDomains with packageManagers"
	}
}
