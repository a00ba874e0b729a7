package policy

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/daycare-run/sandbox/internal/errs"
)

// preset is a name for the registries of a language, and what else people call it.
type preset struct {
	name    string
	domains []string
	aliases []string // not accepted as names; a message leads from them to name
	more    []string // what name+"+" allows besides domains
}

// builtInPresets are those of the document Exec Allowed Domains, row by row, and debian, for who
// installs packages as root in a sandbox of E2B's. What the tools need besides, to the extent that
// it is known, is a preset of its own (ruby+): it often includes hosts where anybody can publish,
// such as GitHub's.
var builtInPresets = []preset{
	{"dart", []string{"pub.dev", "storage.googleapis.com"}, []string{"pub", "flutter"}, nil},
	{"debian", []string{"deb.debian.org", "security.debian.org"},
		[]string{"apt", "apt-get", "dpkg"}, nil},
	{"dotnet", []string{"nuget.org", "api.nuget.org", "globalcdn.nuget.org"},
		[]string{"nuget", "csharp", ".net"}, nil},
	{"go", []string{"proxy.golang.org", "sum.golang.org", "index.golang.org", "golang.org"},
		[]string{"golang"}, nil},
	{"java", []string{"repo.maven.apache.org", "repo1.maven.org", "plugins.gradle.org",
		"services.gradle.org"}, []string{"maven", "mvn", "gradle", "kotlin"},
		[]string{"downloads.gradle.org", "plugins-artifacts.gradle.org", "github.com",
			"release-assets.githubusercontent.com"}},
	{"node", []string{"registry.npmjs.org", "registry.yarnpkg.com", "repo.yarnpkg.com", "bun.sh"},
		[]string{"npm", "npx", "pnpm", "yarn", "bun", "nodejs", "javascript", "typescript"}, nil},
	{"php", []string{"packagist.org", "repo.packagist.org"}, []string{"composer", "packagist"},
		[]string{"getcomposer.org", "github.com", "api.github.com", "codeload.github.com"}},
	{"python", []string{"pypi.org", "files.pythonhosted.org", "pypi.python.org"},
		[]string{"pip", "pip3", "pipx", "uv", "poetry", "pypi", "python3"}, nil},
	{"ruby", []string{"rubygems.org"}, []string{"gem", "bundler", "bundle", "rubygems"},
		[]string{"index.rubygems.org"}},
	{"rust", []string{"crates.io", "index.crates.io", "static.crates.io"},
		[]string{"cargo", "crates"},
		[]string{"static.rust-lang.org", "github.com", "codeload.github.com"}},
}

// builtIn returns the parsed table. It is parsed on first use, because client programs hardly ever
// need it.
var builtIn = sync.OnceValue(func() map[string]Domains {
	parsed := map[string]Domains{}
	parse := func(name string, patterns []string) {
		domains, err := ParseDomains(patterns)
		if err != nil {
			panic(err)
		}
		parsed[name] = domains
	}
	for _, row := range builtInPresets {
		parse(row.name, row.domains)
		if row.more != nil {
			parse(row.name+"+", slices.Concat(row.domains, row.more))
		}
	}
	return parsed
})

// Presets are the values that packageManagers may have. The zero value has the built-in ones.
type Presets struct{ own map[string]Domains }

var presetPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z0-9-]{1,32}$`)
})

// NewPresets adds an operator's own presets to the built-in ones: a name, and the patterns that it
// stands for. All faults come in one error, of class ErrInvalidArgument.
func NewPresets(own map[string][]string) (Presets, error) {
	parsed := make(map[string]Domains, len(own))
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(own)) {
		domains, err := ParseDomains(own[name])
		faults = append(faults, inField(fmt.Sprintf("preset %.40q", name), err)...)
		switch {
		case !presetPattern().MatchString(name):
			faults = append(faults,
				errs.Invalid(
					"preset %.40q may only have lower-case letters, digits and hyphens in its name, at most 32",
					name))
		case builtIn()[name].list != nil && name != "debian": // operators may have had one of this name before us
			faults = append(faults, errs.Invalid("preset %q is built in; choose another name",
				name))
		case len(own[name]) == 0:
			faults = append(faults, errs.Invalid("preset %q has no domains", name))
		case domains.Everything():
			// A call that gets all of the internet must have asked for it in those words.
			faults = append(faults,
				errs.Invalid(
					"preset %q has the domain *, which only a call itself can name, in allowedDomains",
					name))
		}
		parsed[name] = domains
	}
	if len(faults) > 0 {
		return Presets{}, errors.Join(faults...)
	}
	return Presets{parsed}, nil
}

// Names returns the names of all presets, sorted.
func (p Presets) Names() []string {
	return slices.Sorted(maps.Keys(p.all()))
}

// Resolve returns what the named presets allow together. All faults come in one error, of class
// ErrInvalidArgument.
func (p Presets) Resolve(names []string) (Domains, error) {
	var patterns []Domain
	var faults []error
	all := p.all()
	for _, name := range names {
		domains, ok := all[name]
		if !ok {
			faults = append(faults, errs.Invalid("unknown preset %.40q%s; the presets are %s", name,
				p.meant(name), strings.Join(p.Names(), ", ")))
		}
		patterns = append(patterns, domains.list...)
	}
	if len(faults) > 0 {
		return Domains{}, errors.Join(faults...)
	}
	return newDomains(patterns), nil
}

func (p Presets) all() map[string]Domains {
	if len(p.own) == 0 {
		return builtIn()
	}
	all := maps.Clone(builtIn())
	maps.Copy(all, p.own)
	return all
}

// meant returns a hint at the preset that was probably meant by a name in capitals or by the name
// of a tool.
func (p Presets) meant(name string) string {
	name = strings.ToLower(strings.TrimSpace(name))
	i := slices.IndexFunc(builtInPresets, func(row preset) bool {
		return slices.Contains(row.aliases, name)
	})
	if _, known := p.all()[name]; !known && i < 0 {
		return ""
	} else if !known {
		name = builtInPresets[i].name
	}
	return fmt.Sprintf(" (did you mean %s?)", name)
}

// inField prefixes each of the joined faults with the field.
func inField(field string, err error) (faults []error) {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{fmt.Errorf("%s: %w", field, err)}
	}
	for _, err := range joined.Unwrap() {
		faults = append(faults, fmt.Errorf("%s: %w", field, err))
	}
	return faults
}
