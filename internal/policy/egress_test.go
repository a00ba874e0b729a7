package policy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/policy"
)

func rules(t testing.TB, allowStar bool) policy.EgressRules {
	t.Helper()
	own := map[string][]string{"corp": {"git.corp.example", "*.packages.corp.example"}}
	return policy.EgressRules{Presets: presets(t, own), AllowGlobalWildcard: allowStar}
}

// network is what kind of network a container gets.
func network(e policy.Egress) string {
	switch {
	case e.Domains.Everything():
		return "open"
	case len(e.Domains.List()) > 0:
		return "filtered"
	default:
		return "blocked"
	}
}

// TestEgress is the decision table, row by row, where nothing is refused. Lists are separated by spaces;
// none and the empty list are the same.
func TestEgress(t *testing.T) {
	const no, yes = false, true
	tests := []struct {
		network          bool
		domains, presets string
		mode             string
		allowed          string
	}{
		// no @network, no names
		{no, "", "", "blocked", ""},
		// @network, contains *
		{yes, "*", "", "open", "*"},
		{yes, "example.com *", "", "open", "*"},
		{yes, "*", "node", "open", "*"},
		// @network, a list
		{yes, "example.com", "", "filtered", "example.com"},
		{yes, "*.example.com", "", "filtered", "*.example.com"},
		{yes, "b.example a.example", "", "filtered", "a.example b.example"},
		{yes, "", "ruby", "filtered", "rubygems.org"},
		{yes, "", "corp", "filtered", "*.packages.corp.example git.corp.example"},
		// merged, and each once
		{yes, "example.com", "ruby php", "filtered", "example.com packagist.org repo.packagist.org rubygems.org"},
		{yes, "Rubygems.org. rubygems.org", "ruby ruby", "filtered", "rubygems.org"},
		{yes, "*.crates.io", "rust", "filtered", "*.crates.io crates.io"},
		{yes, "BÜCHER.example", "", "filtered", "xn--bcher-kva.example"},
	}
	for _, tt := range tests {
		q := policy.EgressRequest{Network: tt.network, AllowedDomains: strings.Fields(tt.domains), PackageManagers: strings.Fields(tt.presets)}
		got, err := rules(t, true).Decide(q)
		if err != nil || network(got) != tt.mode || strings.Join(got.Domains.List(), " ") != tt.allowed {
			t.Errorf("Decide(%+v) = %s %q, %v, want %s %s", q, network(got), got.Domains.List(), err, tt.mode, tt.allowed)
		}
		// Forbidding * changes nothing else.
		other, err := rules(t, false).Decide(q)
		if refused := tt.mode == "open"; errdefs.IsPermissionDenied(err) != refused || (err == nil && !other.Domains.Equal(got.Domains)) {
			t.Errorf("Decide(%+v) where * is forbidden = %s %q, %v", q, network(other), other.Domains.List(), err)
		}
	}
}

// TestEgressRefuses are the rows that are refused, and what cannot be read.
func TestEgressRefuses(t *testing.T) {
	const no, yes = false, true
	const (
		needsTag    = "needs @network: add it to the call's permissions"
		needsDomain = "permissions: @network needs a domain: name what to reach in allowedDomains"
		noStar      = `allowedDomains: "*" is forbidden here: name the domains to reach`
	)
	tests := []struct {
		network          bool
		domains, presets []string
		denied, invalid  []string // what is said, by class
	}{
		// no @network, some names
		{no, []string{"example.com"}, nil, []string{"allowedDomains " + needsTag}, nil},
		{no, nil, []string{"node"}, []string{"packageManagers " + needsTag}, nil},
		{no, []string{"example.com"}, []string{"node"}, []string{"allowedDomains with packageManagers " + needsTag}, nil},
		// @network, no names
		{yes, nil, nil, nil, []string{needsDomain}},
		{yes, []string{}, []string{}, nil, []string{needsDomain}},
		// @network, contains * where that is forbidden
		{yes, []string{"*"}, nil, []string{noStar}, nil},
		{yes, []string{"a.com", "*"}, []string{"node"}, []string{noStar}, nil},
		{no, []string{"*"}, nil, []string{"allowedDomains " + needsTag, noStar}, nil},
		// what cannot be read
		{yes, []string{""}, nil, nil, []string{`allowedDomains: "" names no domain`}},
		{yes, []string{"a.com", "*.com", "10.0.0.1"}, []string{"npm"}, nil, []string{
			`allowedDomains: "*.com" would allow`, `allowedDomains: "10.0.0.1" is an IP address`, `packageManagers: unknown preset "npm" (did you mean node?)`}},
		{no, []string{"https://a.com"}, nil, []string{needsTag}, []string{`allowedDomains: "https://a.com" is a URL`}},
		{no, nil, []string{""}, []string{needsTag}, []string{`packageManagers: unknown preset ""`}},
	}
	for _, tt := range tests {
		q := policy.EgressRequest{Network: tt.network, AllowedDomains: tt.domains, PackageManagers: tt.presets}
		got, err := rules(t, false).Decide(q)
		if network(got) != "blocked" || errdefs.IsPermissionDenied(err) != (len(tt.denied) > 0) || errdefs.IsInvalidArgument(err) != (len(tt.invalid) > 0) {
			t.Errorf("Decide(%+v) = %s, %v", q, network(got), err)
			continue
		}
		if all := append(tt.denied, tt.invalid...); len(faults(err)) != len(all) {
			t.Errorf("Decide(%+v) has %d faults, want %d: %v", q, len(faults(err)), len(all), err)
		}
		for _, fault := range faults(err) {
			says := tt.invalid
			if errdefs.IsPermissionDenied(fault) {
				says = tt.denied
			}
			if !containsOneOf(fault.Error(), says) {
				t.Errorf("Decide(%+v) says %v, want of this class %q", q, fault, says)
			}
		}
	}
}

func containsOneOf(s string, all []string) bool {
	for _, part := range all {
		if strings.Contains(s, part) {
			return true
		}
	}
	return false
}

// TestEgressZero: what nobody filled in is closed.
func TestEgressZero(t *testing.T) {
	var e policy.Egress
	if network(e) != "blocked" || e.Domains.Allows("example.com") {
		t.Errorf("the zero value is %s", network(e))
	}
	if _, err := (policy.EgressRules{}).Decide(policy.EgressRequest{Network: true, AllowedDomains: []string{"*"}}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("rules that nobody filled in allow *: %v", err)
	}
	got, err := (policy.EgressRules{}).Decide(policy.EgressRequest{Network: true, PackageManagers: []string{"node"}})
	if err != nil || !got.Domains.Allows("registry.npmjs.org") {
		t.Errorf("rules that nobody filled in lack presets: %v, %v", got.Domains.List(), err)
	}
}

// BenchmarkEgress is what a call pays for its names.
func BenchmarkEgress(b *testing.B) {
	r := rules(b, true)
	q := policy.EgressRequest{Network: true, AllowedDomains: []string{"example.com", "*.example.org"}, PackageManagers: []string{"node", "go"}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Decide(q); err != nil {
			b.Fatal(err)
		}
	}
}

// Lists that are too long are refused before each entry has its fault: those would take a thousand times the request's memory.
func TestListsOfNamesAreBounded(t *testing.T) {
	names := func(n int, name string) []string { return slices.Repeat([]string{name}, n) }
	for field, q := range map[string]policy.EgressRequest{
		"allowedDomains":  {Network: true, AllowedDomains: names(10_001, "!")},
		"packageManagers": {Network: true, PackageManagers: names(65, "!")},
		"deniedDomains":   {Network: true, AllowedDomains: []string{"a.org"}, DeniedDomains: names(65, "!")},
	} {
		_, err := policy.EgressRules{}.Decide(q)
		if !errdefs.IsInvalidArgument(err) || !strings.HasPrefix(err.Error(), field+" has ") || len(err.Error()) > 200 {
			t.Errorf("%s: %.300v", field, err)
		}
	}
}
