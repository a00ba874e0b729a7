package policy

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
)

// Domains is the set of names that a call may reach, as patterns. It is immutable. A pattern whose
// names another one allows is left out, so two sets that allow the same names are Equal, however
// they were written. The zero value allows nothing.
type Domains struct {
	list  []Domain
	index map[string]reach // by name; a wildcard by the name after its "*."
}

// reach is what the patterns with a name allow.
type reach uint8

const (
	itself reach = 1 << iota
	beneath
)

// ParseDomains parses patterns. All faults come in one error, of class ErrInvalidArgument.
func ParseDomains(patterns []string) (Domains, error) { return parseEach(patterns, ParseDomain) }

// ParseDenied parses the patterns of deniedDomains: they may include patterns that no call could be
// allowed.
func ParseDenied(patterns []string) (Domains, error) { return parseEach(patterns, parseDenial) }

func parseEach(patterns []string, parse func(string) (Domain, error)) (Domains, error) {
	var faults []error
	parsed := make([]Domain, 0, len(patterns))
	for _, pattern := range patterns {
		domain, err := parse(pattern)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		parsed = append(parsed, domain)
	}
	if len(faults) > 0 {
		return Domains{}, errors.Join(faults...)
	}
	return newDomains(parsed), nil
}

func newDomains(patterns []Domain) Domains {
	d := Domains{index: make(map[string]reach, len(patterns))}
	for _, p := range patterns {
		if p.pattern == everyName {
			return Domains{list: []Domain{p}}
		}
		if name, ok := strings.CutPrefix(p.pattern, wildcard); ok {
			d.index[name] |= beneath
		} else {
			d.index[p.pattern] |= itself
		}
	}
	maps.DeleteFunc(d.index, func(name string, _ reach) bool { return d.allowsBelow([]byte(name)) })
	for name, has := range d.index {
		if has&itself != 0 {
			d.list = append(d.list, Domain{name})
		}
		if has&beneath != 0 {
			d.list = append(d.list, Domain{wildcard + name})
		}
	}
	slices.SortFunc(d.list, func(a, b Domain) int { return strings.Compare(a.pattern, b.pattern) })
	return d
}

// Union returns a set that allows what either set allows.
func (d Domains) Union(other Domains) Domains {
	return newDomains(slices.Concat(d.list, other.list))
}

// without returns the set without the patterns that other covers completely.
func (d Domains) without(other Domains) Domains {
	if len(other.list) == 0 {
		return d
	}
	return newDomains(slices.DeleteFunc(slices.Clone(d.list), other.covers))
}

// covers reports whether a set allows all that a pattern does.
func (d Domains) covers(p Domain) bool {
	name, below := strings.CutPrefix(p.pattern, wildcard)
	if below {
		return d.Everything() || d.index[name]&beneath != 0 || d.allowsBelow([]byte(name))
	}
	return d.Everything() || d.Allows(name)
}

// Covers reports whether a set allows all that other allows.
func (d Domains) Covers(other Domains) bool {
	return !slices.ContainsFunc(other.list, func(p Domain) bool { return !d.covers(p) })
}

// below returns the patterns for names that a wildcard of other allows.
func (d Domains) below(other Domains) Domains {
	return newDomains(slices.DeleteFunc(slices.Clone(d.list), func(p Domain) bool {
		return !other.allowsBelow([]byte(strings.TrimPrefix(p.pattern, wildcard)))
	}))
}

// IsZero reports whether nothing is allowed.
func (d Domains) IsZero() bool { return len(d.list) == 0 }

// Everything reports whether all names are allowed, by *.
func (d Domains) Everything() bool { return len(d.list) == 1 && d.list[0].pattern == everyName }

// Equal reports whether both sets allow the same names.
func (d Domains) Equal(other Domains) bool { return slices.Equal(d.list, other.list) }

// List returns the patterns, sorted; never nil.
func (d Domains) List() []string {
	patterns := make([]string, len(d.list))
	for i, p := range d.list {
		patterns[i] = p.pattern
	}
	return patterns
}

// Allows reports whether a name may be reached. It takes names as they are on the wire of DNS, TLS
// and HTTP: letters, digits, hyphens and underscores, in any case, with or without a final dot. No
// pattern but * allows a name with anything else in it (an address in brackets, a port, an escaped
// dot, a letter beyond ASCII). The time does not depend on the number of patterns, and nothing is
// allocated.
func (d Domains) Allows(name string) bool {
	if len(d.index) == 0 {
		return d.Everything()
	}
	var buffer [maxName]byte
	asked, ok := lowered(&buffer, strings.TrimSuffix(name, "."))
	return ok && (d.index[string(asked)]&itself != 0 || d.allowsBelow(asked))
}

// allowsBelow reports whether a wildcard allows a canonical name.
func (d Domains) allowsBelow(name []byte) bool {
	for {
		dot := bytes.IndexByte(name, '.')
		if dot < 0 {
			return false
		}
		name = name[dot+1:]
		if d.index[string(name)]&beneath != 0 {
			return true
		}
	}
}

// lowered converts a name from the wire to its canonical form, in buffer.
func lowered(buffer *[maxName]byte, name string) (canonical []byte, ok bool) {
	if len(name) > maxName {
		return nil, false
	}
	label := 0
	for i := range len(name) {
		c := name[i]
		label++
		switch {
		case c == '.' && label > 1:
			label = 0
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return nil, false
		}
		if label > maxLabel {
			return nil, false
		}
		buffer[i] = c
	}
	return buffer[:len(name)], label > 0
}
