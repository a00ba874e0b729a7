package policy

import (
	"errors"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Egress is what a call may reach. The names that it may reach say all of it, so nothing can
// contradict them: no names mean no network, and only * means all of it. The zero value is no
// network.
type Egress struct {
	Domains Domains
	// Denied are names among these that the call may not reach after all. It is empty where all
	// names are allowed, because nothing is filtered there.
	Denied Domains
}

// Allows reports whether a name may be reached, as Domains.Allows does.
func (e Egress) Allows(name string) bool { return e.Domains.Allows(name) && !e.Denied.Allows(name) }

// EgressRules are an operator's rules. The zero value has the built-in presets and forbids *.
type EgressRules struct {
	Presets Presets
	// AllowGlobalWildcard lets a call name *, which opens the whole network to it.
	AllowGlobalWildcard bool
}

// EgressRequest is what a call asks for.
type EgressRequest struct {
	// Network says that @network was granted to the call.
	Network bool
	// AllowedDomains are patterns for ParseDomain, PackageManagers the names of presets.
	AllowedDomains, PackageManagers []string
	// DeniedDomains are patterns that take precedence over both.
	DeniedDomains []string
}

// maxNamed is how many names a call may list, however few of them the settings let it reach.
const maxNamed = 10_000

// Decide implements the table of "Exec Allowed Domains": it joins the names of both lists, and
// checks whether the call may reach them. All faults come in one error, of class ErrInvalidArgument
// for what cannot be parsed or says too little, and of class ErrPermissionDenied for what is not
// allowed.
func (r EgressRules) Decide(q EgressRequest) (Egress, error) {
	for _, list := range []struct {
		field   string
		entries []string
		limit   int
	}{{"allowedDomains", q.AllowedDomains, maxNamed},
		{"packageManagers", q.PackageManagers, maxRestrictions},
		{"deniedDomains", q.DeniedDomains, maxRestrictions}} {
		if len(list.entries) > list.limit { // before each entry adds a fault
			return Egress{}, tooMany(list.field, list.entries, list.limit)
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
		faults = append(faults, errs.Denied("%s needs @network: add it to the call's permissions",
			q.fields()))
	case q.Network && !asks:
		faults = append(faults,
			errs.Invalid(
				`permissions: @network needs a domain: name what to reach in allowedDomains (such as "example.com") or in packageManagers (such as "node")`))
	}
	if allowed.Everything() && !r.AllowGlobalWildcard {
		faults = append(faults,
			errs.Denied(
				`allowedDomains: "*" is forbidden here: name the domains to reach, such as "example.com" or "*.example.com"`))
	}
	if len(q.DeniedDomains) > 0 && allowed.Everything() {
		faults = append(faults,
			errs.Invalid(
				`deniedDomains: nothing is filtered in a call with "*" in allowedDomains, so no name can be denied to it: name the domains to reach, or leave deniedDomains out`))
	}
	if len(faults) > 0 {
		return Egress{}, errors.Join(faults...)
	}
	left := allowed.without(denied)
	if len(left.list) == 0 && len(allowed.list) > 0 {
		return Egress{},
			errs.Invalid(
				"deniedDomains: nothing is left of what %s allows: leave @network out of the call's permissions, or deny less",
				q.fields())
	}
	return Egress{Domains: left, Denied: denied.below(left)}, nil
}

// fields returns the names of the fields that ask for names.
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
