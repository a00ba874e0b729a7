package egress

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/egress/gateway"
)

// freeSubnets returns, for each range, the first few networks with prefixes of bits that overlap none
// of taken. A range that is smaller is one network.
func freeSubnets(ranges []netip.Prefix, bits int, taken []netip.Prefix) []netip.Prefix {
	const limit = 8 // of each range
	var free []netip.Prefix
	for _, r := range ranges {
		found := 0
		for at := netip.PrefixFrom(r.Masked().Addr(),
			max(bits, r.Bits())); r.Contains(at.Addr()) && found < limit; at = following(at) {
			if !overlaps(at, taken) {
				free = append(free, at)
				found++
			}
		}
	}
	return free
}

// following returns the network after p, of the same size.
func following(p netip.Prefix) netip.Prefix {
	b := p.Addr().As4()
	n := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	n += 1 << (32 - p.Bits())
	return netip.PrefixFrom(netip.AddrFrom4(
		[4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), p.Bits())
}

func overlaps(p netip.Prefix, others []netip.Prefix) bool {
	for _, other := range others {
		if p.Overlaps(other) {
			return true
		}
	}
	return false
}

// hostRanges returns the networks that the host has addresses in or routes to, without the default
// route.
func hostRanges() ([]netip.Prefix, error) {
	var ranges []netip.Prefix
	addrs, err := gateway.Dump(func() ([]netlink.Addr, error) {
		return netlink.AddrList(nil, netlink.FAMILY_V4)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list the host's addresses: %w", err)
	}
	for _, a := range addrs {
		ranges = addRange(ranges, a.IPNet)
	}
	// All tables: networks that a policy routes elsewhere are taken, too.
	routes, err := gateway.Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4,
			&netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list the host's routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst != nil {
			ranges = addRange(ranges, r.Dst)
		}
	}
	return ranges, nil
}

// addRange adds a network, unless it is the default route's.
func addRange(ranges []netip.Prefix, network *net.IPNet) []netip.Prefix {
	addr, ok := netip.AddrFromSlice(network.IP)
	if bits, _ := network.Mask.Size(); ok && bits > 0 {
		ranges = append(ranges, netip.PrefixFrom(addr.Unmap(), bits).Masked())
	}
	return ranges
}
