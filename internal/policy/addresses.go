package policy

import (
	"net/netip"
	"slices"
	"sync"
)

// A span is a range of addresses that does not belong to the public internet. One table serves all:
// the DNS filter strips these addresses from answers, the guard does not connect to them, and the
// rules drop packets to them. Whole ranges are listed even where a few of their addresses would do
// no harm: ranges that nobody needs are not split.
type span struct {
	prefix  string
	private bool // a private network, which a profile with private addresses may reach
	rfc     string
}

var spans = []span{
	{"0.0.0.0/8", false, "RFC 1122: this network"},
	{"10.0.0.0/8", true, "RFC 1918: private"},
	{"100.64.0.0/10", true, "RFC 6598: shared by carriers; overlay networks use it"},
	{"127.0.0.0/8", false, "RFC 1122: loopback"},
	{"169.254.0.0/16", false,
		"RFC 3927: link-local; clouds keep their metadata at 169.254.169.254"},
	{"172.16.0.0/12", true, "RFC 1918: private"},
	{"192.0.0.0/24", false,
		"RFC 6890: protocol assignments; one cloud has metadata at 192.0.0.192"},
	{"192.0.2.0/24", false, "RFC 5737: documentation"},
	{"192.31.196.0/24", false, "RFC 7535: AS112, direct delegation"},
	{"192.52.193.0/24", false, "RFC 7450: multicast tunnelling"},
	{"192.88.99.0/24", false, "RFC 7526: 6to4 relays, deprecated"},
	{"192.168.0.0/16", true, "RFC 1918: private"},
	{"192.175.48.0/24", false, "RFC 7534: AS112, reverse names of private addresses"},
	{"198.18.0.0/15", false, "RFC 2544: benchmarks"},
	{"198.51.100.0/24", false, "RFC 5737: documentation"},
	{"203.0.113.0/24", false, "RFC 5737: documentation"},
	{"224.0.0.0/4", false, "RFC 5771: multicast"},
	{"240.0.0.0/4", false, "RFC 1112: reserved; RFC 919: 255.255.255.255, broadcast"},

	// In IPv6 the internet is 2000::/3. The rest is listed for the reader, and so that the table
	// still holds when more of it is allocated.
	{"::/3", false, "RFC 4291: unspecified, loopback, and forms that hold an IPv4 address: " +
		"::/96 compatible, ::ffff:0:0/96 mapped, 64:ff9b::/96 (RFC 6052) and 64:ff9b:1::/48 (RFC 8215) NAT64; " +
		"100::/64 discard (RFC 6666)"},
	{"2001::/23", false,
		"RFC 2928: protocol assignments; 2001::/32 Teredo (RFC 4380), 2001:20::/28 ORCHIDv2 (RFC 7343)"},
	{"2001:db8::/32", false, "RFC 3849: documentation"},
	{"2002::/16", false, "RFC 3056: 6to4, which holds an IPv4 address"},
	{"2620:4f:8000::/48", false, "RFC 7534: AS112"},
	{"3ffe::/16", false, "RFC 3701: 6bone, given back"},
	{"3fff::/20", false, "RFC 9637: documentation"},
	{"4000::/2", false, "RFC 4291: not allocated; 5f00::/16 segment routing (RFC 9602)"},
	{"8000::/2", false, "RFC 4291: not allocated"},
	{"c000::/3", false, "RFC 4291: not allocated"},
	{"e000::/4", false, "RFC 4291: not allocated"},
	{"f000::/5", false, "RFC 4291: not allocated"},
	{"f800::/6", false, "RFC 4291: not allocated"},
	{"fc00::/7", true, "RFC 4193: unique local"},
	{"fe00::/8", false,
		"RFC 4291: fe80::/10 link-local; RFC 3879: fec0::/10 site-local, deprecated"},
	{"ff00::/8", false, "RFC 4291: multicast"},
}

// spanPrefixes returns the spans as prefixes. The list is never changed.
var spanPrefixes = sync.OnceValue(func() []netip.Prefix {
	prefixes := make([]netip.Prefix, len(spans))
	for i, s := range spans {
		prefixes[i] = netip.MustParsePrefix(s.prefix)
	}
	return prefixes
})

// publicAddress reports whether addr belongs to the public internet. An IPv4 address written as
// IPv6 does not, whichever it is: nothing needs that form, and it has been used to get past lists.
func publicAddress(addr netip.Addr) bool {
	return addr.IsValid() && addr.Zone() == "" && find(addr) < 0
}

// privateAddress reports whether addr belongs to a private network: that of a house, an office or a
// cloud, but not a machine's own (loopback), a neighbour's (link-local) or a group's (multicast).
func privateAddress(addr netip.Addr) bool {
	if !addr.IsValid() || addr.Zone() != "" {
		return false
	}
	i := find(addr)
	return i >= 0 && spans[i].private
}

// find returns the index of the span that holds addr, or -1. Spans do not overlap.
func find(addr netip.Addr) int {
	for i, prefix := range spanPrefixes() {
		if prefix.Contains(addr) {
			return i
		}
	}
	return -1
}

// Addresses is the set of addresses that a profile may reach. The zero value is the public
// internet.
type Addresses struct {
	// Private admits private networks as well.
	Private bool

	// Own reports whether an address is the host's own; these are never admitted. It is called each
	// time, so that it can follow the host, for addresses that would otherwise be admitted.
	// Default: none is.
	Own func(netip.Addr) bool

	// Extra are ranges that count as public although they are not, such as a test's internet.
	Extra []netip.Prefix
}

// Admits reports whether the profile may learn addr and connect to it.
func (a Addresses) Admits(addr netip.Addr) bool {
	// Own costs most, so it comes last: few addresses get that far.
	return addr.IsValid() && a.ranges(addr) && (a.Own == nil || !a.Own(addr))
}

func (a Addresses) ranges(addr netip.Addr) bool {
	if publicAddress(addr) || a.Private && privateAddress(addr) {
		return true
	}
	return addr.Zone() == "" && slices.ContainsFunc(a.Extra, func(p netip.Prefix) bool {
		return p.Contains(addr)
	})
}

// Excluded4 returns the IPv4 ranges that Admits refuses on every host, without the addresses of
// Own. It is for rules that name ranges. The prefixes do not overlap.
func (a Addresses) Excluded4() []netip.Prefix {
	var excluded []netip.Prefix
	for i, prefix := range spanPrefixes() {
		if prefix.Addr().Is4() && !(a.Private && spans[i].private) {
			excluded = append(excluded, prefix)
		}
	}
	for _, extra := range a.Extra {
		var left []netip.Prefix
		for _, prefix := range excluded {
			left = append(left, without(prefix, extra.Masked())...)
		}
		excluded = left
	}
	return excluded
}

// without returns p without the addresses of cut.
func without(p, cut netip.Prefix) []netip.Prefix {
	switch {
	case !p.Overlaps(cut):
		return []netip.Prefix{p}
	case cut.Bits() <= p.Bits():
		return nil
	}
	low := netip.PrefixFrom(p.Addr(), p.Bits()+1)
	b := p.Addr().As4()
	b[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	high := netip.PrefixFrom(netip.AddrFrom4(b), p.Bits()+1)
	return append(without(low, cut), without(high, cut)...)
}
