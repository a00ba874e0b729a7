package guard

import (
	"net/netip"
	"strings"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// canonicalName returns the one form of a host name that the guard uses: lower case, ASCII, no
// trailing dot. What a resolver might take for an address is refused.
func canonicalName(s string) (string, *refusal) {
	bad := &refusal{verdict: decisions.Malformed, reason: reasonBadName}
	if isAddress(s) {
		return "", &refusal{verdict: decisions.Denied, reason: reasonAddress}
	}
	name := strings.TrimSuffix(s, ".")
	if name == "" || len(name) > 253 {
		return "", bad
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 {
			return "", bad
		}
		if strings.ContainsFunc(label, notInName) {
			return "", bad
		}
		last = label
	}
	if endsInNumber(last) {
		return "", &refusal{verdict: decisions.Denied, reason: reasonAddress}
	}
	return strings.ToLower(name), nil
}

func notInName(c rune) bool {
	return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' &&
		c != '_'
}

func isAddress(s string) bool {
	_, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return err == nil
}

// endsInNumber reports whether inet_aton takes a name with that last label for an address: 127.1,
// 0x7f.1, 2130706433.
func endsInNumber(last string) bool {
	if hex, ok := strings.CutPrefix(strings.ToLower(last), "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}
