package policy_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/policy"
)

// documented is the table of the document Sandboxes.
var documented = map[string][]string{
	"node":   {"registry.npmjs.org", "registry.yarnpkg.com", "repo.yarnpkg.com", "bun.sh"},
	"python": {"pypi.org", "files.pythonhosted.org", "pypi.python.org"},
	"rust":   {"crates.io", "index.crates.io", "static.crates.io"},
	"go":     {"proxy.golang.org", "sum.golang.org", "index.golang.org", "golang.org"},
	"java":   {"repo.maven.apache.org", "repo1.maven.org", "plugins.gradle.org", "services.gradle.org"},
	"ruby":   {"rubygems.org"},
	"php":    {"packagist.org", "repo.packagist.org"},
	"dotnet": {"nuget.org", "api.nuget.org", "globalcdn.nuget.org"},
	"dart":   {"pub.dev", "storage.googleapis.com"},
}

// further are the presets that no document has, and what those with a plus add to the row of the document.
var further = map[string][]string{
	"debian": {"deb.debian.org", "security.debian.org"},
	"java+":  {"downloads.gradle.org", "github.com", "plugins-artifacts.gradle.org", "release-assets.githubusercontent.com"},
	"php+":   {"api.github.com", "codeload.github.com", "getcomposer.org", "github.com"},
	"ruby+":  {"index.rubygems.org"},
	"rust+":  {"codeload.github.com", "github.com", "static.rust-lang.org"},
}

func presets(t testing.TB, own map[string][]string) policy.Presets {
	t.Helper()
	p, err := policy.NewPresets(own)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPresets(t *testing.T) {
	for _, p := range []policy.Presets{{}, presets(t, nil), presets(t, map[string][]string{})} {
		all := maps.Clone(documented)
		for name, more := range further {
			all[name] = slices.Concat(documented[strings.TrimSuffix(name, "+")], more)
		}
		if got, want := p.Names(), slices.Sorted(maps.Keys(all)); !slices.Equal(got, want) {
			t.Errorf("Names() = %q, want %q", got, want)
		}
		for name, want := range all {
			got, err := p.Resolve([]string{name})
			if slices.Sort(want); err != nil || !slices.Equal(got.List(), want) {
				t.Errorf("%s is %q, %v, want %q", name, got.List(), err, want)
			}
		}
	}
}

func TestResolve(t *testing.T) {
	p := presets(t, map[string][]string{
		"corp":                  {"Git.Corp.example.", "*.Packages.corp.example"},
		"npm":                   {"npm.corp.example"}, // not a name of the built-in ones
		"-":                     {"*.github.io"},
		"debian":                {"deb.corp.example"}, // takes the place of ours, which came later
		strings.Repeat("x", 32): {"crates.io", "a.example"},
	})
	tests := []struct{ names, want string }{
		{"", ""},
		{"ruby", "rubygems.org"},
		{"ruby ruby", "rubygems.org"},
		{"php ruby", "packagist.org repo.packagist.org rubygems.org"},
		{"corp ruby", "*.packages.corp.example git.corp.example rubygems.org"},
		{"npm", "npm.corp.example"},
		{"-", "*.github.io"},
		{"debian", "deb.corp.example"},
		{"ruby+", "index.rubygems.org rubygems.org"},
		{"rust " + strings.Repeat("x", 32), "a.example crates.io index.crates.io static.crates.io"},
	}
	for _, tt := range tests {
		if got, err := p.Resolve(strings.Fields(tt.names)); err != nil || strings.Join(got.List(), " ") != tt.want {
			t.Errorf("Resolve(%s) = %q, %v, want %s", tt.names, got.List(), err, tt.want)
		}
	}
	if got, err := (policy.Presets{}).Resolve([]string{"corp"}); err == nil {
		t.Errorf("an operator's preset is known to others: %q", got.List())
	}
}

func TestResolveRefuses(t *testing.T) {
	p := presets(t, map[string][]string{"corp": {"git.corp.example"}})
	tests := []struct{ name, says string }{
		{"", `unknown preset ""; the presets are corp, dart, debian, dotnet, go, java, java+, node, php, php+, python, ruby, ruby+, rust, rust+`},
		{"npm", `unknown preset "npm" (did you mean node?)`},
		{"Yarn", `unknown preset "Yarn" (did you mean node?)`},
		{"pip", `unknown preset "pip" (did you mean python?)`},
		{"cargo", `unknown preset "cargo" (did you mean rust?)`},
		{"Node", `unknown preset "Node" (did you mean node?)`},
		{" node", `unknown preset " node" (did you mean node?)`},
		{"CORP", `unknown preset "CORP" (did you mean corp?)`},
		{"*", `unknown preset "*"; the presets are`},
		{"perl", `unknown preset "perl"; the presets are`},
		{"pypi.org", `unknown preset "pypi.org"; the presets are`},
		{"a\nb", `unknown preset "a\nb"; the presets are`},
		{strings.Repeat("a", 1<<20), `unknown preset "aaa`},
	}
	for _, tt := range tests {
		got, err := p.Resolve([]string{"ruby", tt.name})
		if !errdefs.IsInvalidArgument(err) || !strings.HasPrefix(err.Error(), tt.says) || len(err.Error()) > 300 || !got.Equal(policy.Domains{}) {
			t.Errorf("Resolve(%.40q) = %v, %v, want %s", tt.name, got.List(), err, tt.says)
		}
	}
	if _, err := p.Resolve([]string{"npm", "ruby", "pip"}); len(faults(err)) != 2 {
		t.Errorf("Resolve: %v, want both faults", err)
	}
}

// TestAliasesLeadSomewhere: a tool is not a preset, but whoever names one means one.
func TestAliasesLeadSomewhere(t *testing.T) {
	for alias, want := range map[string]string{
		"npm": "node", "pnpm": "node", "yarn": "node", "bun": "node", "pip": "python", "uv": "python", "poetry": "python", "cargo": "rust",
		"golang": "go", "maven": "java", "gradle": "java", "gem": "ruby", "bundler": "ruby", "composer": "php", "nuget": "dotnet", "pub": "dart",
	} {
		if _, err := (policy.Presets{}).Resolve([]string{alias}); err == nil || !strings.Contains(err.Error(), "did you mean "+want+"?") {
			t.Errorf("Resolve(%s): %v, want it to lead to %s", alias, err, want)
		}
	}
}

func TestNewPresetsRefuses(t *testing.T) {
	ok := []string{"example.com"}
	tests := []struct {
		name    string
		domains []string
		says    []string
	}{
		{"node", ok, []string{`preset "node" is built in`}},
		{"dart", nil, []string{`preset "dart" is built in`}},
		{"", ok, []string{`preset "" may only have`}},
		{"Corp", ok, []string{`preset "Corp" may only have`}},
		{"a b", ok, []string{"may only have"}},
		{"a_b", ok, []string{"may only have"}},
		{"a.b", ok, []string{"may only have"}},
		{"a\n", ok, []string{"may only have"}},
		{"ä", ok, []string{"may only have"}},
		{"*", ok, []string{"may only have"}},
		{strings.Repeat("a", 33), ok, []string{"may only have"}},
		{"corp", nil, []string{`preset "corp" has no domains`}},
		{"corp", []string{}, []string{`preset "corp" has no domains`}},
		{"corp", []string{"*"}, []string{`preset "corp" has the domain *`}},
		{"corp", []string{"example.com", "*"}, []string{`preset "corp" has the domain *`}},
		{"corp", []string{"*.com", "example.com", "10.0.0.1"}, []string{`preset "corp": "*.com" would allow`, `preset "corp": "10.0.0.1" is an IP address`}},
		{"A", []string{"*.com"}, []string{`preset "A": "*.com" would allow`, `preset "A" may only have`}},
	}
	for _, tt := range tests {
		p, err := policy.NewPresets(map[string][]string{tt.name: tt.domains, "fine": ok, "bad-": {"x"}})
		if !errdefs.IsInvalidArgument(err) || len(faults(err)) != len(tt.says)+1 {
			t.Errorf("NewPresets(%q: %q): %v", tt.name, tt.domains, err)
			continue
		}
		for _, says := range append(tt.says, `preset "bad-": "x" has no dot`) {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("NewPresets(%q: %q): %v, want it to say %s", tt.name, tt.domains, err, says)
			}
		}
		if _, err := p.Resolve([]string{"fine"}); err == nil {
			t.Errorf("NewPresets(%q: %q) has presets in spite of %v", tt.name, tt.domains, err)
		}
	}
}

func TestPresetsDoNotChange(t *testing.T) {
	own := map[string][]string{"corp": {"git.corp.example"}}
	p := presets(t, own)
	own["corp"][0], own["other"] = "*", []string{"*"}
	p.Names()[0] = "x"
	if got, err := p.Resolve([]string{"corp"}); err != nil || !got.Equal(domains(t, "git.corp.example")) || len(p.Names()) != 15 {
		t.Errorf("Resolve = %v, %v; %q", got.List(), err, p.Names())
	}
}
