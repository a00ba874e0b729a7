package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Domain is a pattern of names in its one canonical form, lower-case A-labels without a final dot:
// a name (example.com), all names below one at any depth (*.example.com, which does not match
// example.com itself), or all names (*). ParseDomain makes it; the zero value matches nothing.
type Domain struct{ pattern string }

func (d Domain) String() string { return d.pattern }

const (
	everyName = "*"
	wildcard  = "*."
	maxName   = 253 // octets of a name, without the final dot
	maxLabel  = 63
)

// ParseDomain parses a pattern that a person or an agent wrote. The error, of class
// ErrInvalidArgument, has the pattern and the reason.
func ParseDomain(s string) (Domain, error) { return parsePattern(s, whyNotBelow) }

// parseDenial parses a pattern to deny: a wildcard may deny as much as it likes.
func parseDenial(s string) (Domain, error) {
	return parsePattern(s, func(string) string { return "" })
}

func parsePattern(s string, whyNotBelow func(string) string) (Domain, error) {
	if s == everyName {
		return Domain{s}, nil
	}
	name, below := strings.CutPrefix(s, wildcard)
	name, reason := parseHost(name)
	if reason == "" && below {
		reason = whyNotBelow(name)
	} else if reason == "" && !strings.Contains(name, ".") {
		// What a single label means depends on where it is resolved (com, github, localhost, nas),
		// and it is usually a slip for a domain or a preset.
		reason = "has no dot; name all of the domain, such as example.com"
	}
	switch {
	case reason != "":
		return Domain{}, errs.Invalid("%.200q %s", s, reason)
	case below:
		return Domain{wildcard + name}, nil
	default:
		return Domain{name}, nil
	}
}

// hostNames maps as browsers and resolvers do (UTS 46, non-transitional) and refuses what no host
// name has. whyNoLabels checks hyphens: names such as r3---sn-x.googlevideo.com are in use.
var hostNames = idna.New(idna.MapForLookup(), idna.BidiRule(), idna.CheckHyphens(false))

func parseHost(s string) (name, reason string) {
	if reason := whyNoHost(s); reason != "" {
		return "", reason
	}
	name, err := hostNames.ToASCII(trimFinalDot(s))
	if err != nil {
		return "", "is no host name: " + strings.TrimPrefix(err.Error(), "idna: ")
	}
	return name, whyNoLabels(name)
}

// whyNoHost checks a name as written, to say what it is if it is not a name.
func whyNoHost(s string) string {
	switch {
	case s == "":
		return "names no domain"
	case len(s) > 4*maxName:
		return fmt.Sprintf("is too long; a name has at most %d characters", maxName)
	case !utf8.ValidString(s):
		return "is not UTF-8"
	case strings.ContainsFunc(s, isUnseen):
		return "has a space, a control character or one that cannot be seen"
	case isAddress(s):
		return "is an IP address; only names can be allowed, such as example.com"
	case strings.Contains(s, "://"):
		return "is a URL; name its host alone"
	case strings.Contains(s, "@"):
		return "has a user; name the host alone"
	case strings.ContainsAny(s, `/\?#`):
		return "has a path; name the host alone"
	case strings.Contains(s, ":"):
		return "has a port or a scheme; name the host alone"
	case strings.Contains(s, "*"):
		return "has a wildcard that is not the whole first label; use *.example.com, or * alone"
	case strings.Contains(s, "_"):
		// Such names are records about a service (_dmarc), not hosts, and no authority certifies
		// one.
		return "has an underscore, which no host name has"
	}
	return ""
}

// isUnseen reports whether IDNA would drop a rune silently, or it looks like nothing. Two joiners
// are left to IDNA, which knows the scripts that need them.
func isUnseen(r rune) bool {
	return unicode.IsControl(r) || unicode.IsSpace(r) ||
		(unicode.In(r, unicode.Cf, unicode.Variation_Selector,
			unicode.Other_Default_Ignorable_Code_Point) && r != '\u200c' && r != '\u200d')
}

func isAddress(s string) bool {
	_, noAddr := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	_, noPort := netip.ParseAddrPort(s)
	_, noPrefix := netip.ParsePrefix(s)
	return noAddr == nil || noPort == nil || noPrefix == nil
}

// trimFinalDot runs before IDNA, which turns a label that is only xn-- into a final dot.
func trimFinalDot(s string) string {
	for _, dot := range []string{".", "\u3002", "\uff0e", "\uff61"} {
		if rest, ok := strings.CutSuffix(s, dot); ok {
			return rest
		}
	}
	return s
}

// whyNoLabels checks a name in canonical form.
func whyNoLabels(name string) string {
	if len(name) > maxName {
		return fmt.Sprintf("has %d characters; a name has at most %d", len(name), maxName)
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		switch {
		case label == "":
			return "has an empty label"
		case len(label) > maxLabel:
			return fmt.Sprintf("has a label of %d characters; a label has at most %d", len(label),
				maxLabel)
		case label[0] == '-' || label[len(label)-1] == '-':
			return "has a label that begins or ends with a hyphen"
		}
		last = label
	}
	if isNumber(last) {
		return "ends in a number, so programs take it for an IP address; only names can be allowed"
	}
	return ""
}

// isNumber implements the URL standard's rule for a last label ("ends in a number"): 127.1, 0x7f.1
// and 2130706433 all are addresses.
func isNumber(label string) bool {
	digits := "0123456789"
	if rest, ok := strings.CutPrefix(label, "0x"); ok {
		label, digits = rest, digits+"abcdef"
	}
	return strings.Trim(label, digits) == ""
}

func whyNotBelow(name string) string {
	if len(wildcard)+len(name) > maxName {
		return fmt.Sprintf("leaves no room for a name below it; a name has at most %d characters",
			maxName)
	}
	// Names such as ck are not suffixes in the list, but all names below them are: hence the second
	// lookup.
	for _, suffix := range []string{name, "any-name." + name} {
		if public, icann := publicsuffix.PublicSuffix(suffix); icann && public == suffix {
			return fmt.Sprintf(
				"would allow everyone who has a name below %s; name the domain, such as *.example.%[1]s",
				name)
		}
	}
	return ""
}
