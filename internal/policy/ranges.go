package policy

import (
	"errors"
	"net/netip"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Ranges are addresses that may be reached whatever the name. Where ranges of both lists hold an
// address, the narrower range decides; of two equal ranges, the one that allows. The zero value
// allows none.
type Ranges struct{ allowed, denied []netip.Prefix }

// maxRanges is how many ranges each list may have: each connection is compared with all of them.
const maxRanges = 256

// ParseRanges parses IPv4 addresses and ranges. All faults come in one error, of class
// ErrInvalidArgument.
func ParseRanges(allowed, denied []string) (r Ranges, err error) {
	var faults []error
	for _, list := range []struct {
		name string
		from []string
		to   *[]netip.Prefix
	}{{"allowed", allowed, &r.allowed}, {"denied", denied, &r.denied}} {
		if len(list.from) > maxRanges {
			faults = append(faults, errs.Invalid("there are %d %s ranges, more than %d",
				len(list.from), list.name, maxRanges))
			continue
		}
		for _, written := range list.from {
			prefix, err := parseRange(written)
			faults = append(faults, err)
			*list.to = append(*list.to, prefix)
		}
	}
	if err := errors.Join(faults...); err != nil {
		return Ranges{}, err
	}
	return r, nil
}

// parseRange parses one address, or a range such as 192.0.2.0/24.
func parseRange(s string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		addr, err := netip.ParseAddr(s)
		if err != nil {
			return netip.Prefix{},
				errs.Invalid("%.100q is neither an address nor a range of addresses", s)
		}
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	if !prefix.Addr().Is4() {
		return netip.Prefix{}, errs.Invalid("%.100q is not an IPv4 address, and there is no IPv6",
			s)
	}
	if prefix != prefix.Masked() {
		return netip.Prefix{}, errs.Invalid("%.100q has bits beyond its length: the range is %s", s,
			prefix.Masked())
	}
	return prefix, nil
}

// Allows reports whether an address may be reached. Whether a profile may reach it at all is up to
// Addresses.
func (r Ranges) Allows(addr netip.Addr) bool {
	allowed := longest(r.allowed, addr)
	return allowed >= 0 && allowed >= longest(r.denied, addr)
}

// longest returns the prefix length of the narrowest range that holds an address, or -1.
func longest(list []netip.Prefix, addr netip.Addr) int {
	bits := -1
	for _, prefix := range list {
		if prefix.Contains(addr) {
			bits = max(bits, prefix.Bits())
		}
	}
	return bits
}
