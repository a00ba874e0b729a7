package rules

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
)

// elements are the contents of the sets that change.
type elements struct {
	members, ports, bound []nftables.SetElement
	excluded              []netip.Prefix // from what is reachable, by Exclude
}

// Each of the following returns a table with only the sets that change while the rules stay.

func bridgeSets(c Config, e elements) table {
	return table{family: nftables.TableFamilyBridge, name: c.Table, sets: []set{
		{name: portsSet, key: ifnameType, elements: e.ports},
		{name: boundSet, key: boundType, elements: e.bound},
	}}
}

func arpSets(c Config, e elements) table {
	return table{family: nftables.TableFamilyARP, name: c.Table, sets: []set{
		{name: portsSet, key: ifnameType, elements: e.ports},
	}}
}

func inetSets(c Config, e elements) table {
	return table{family: nftables.TableFamilyINet, name: c.Table, sets: []set{
		{name: portsSet, key: ifnameType, elements: e.ports},
		{name: memberSet, key: memberType, elements: e.members},
	}}
}

func (e *elements) addContainer(c Config, addr netip.Addr) {
	e.members = append(e.members,
		nftables.SetElement{Key: memberKey(c.mustBridgeOf(addr).Name, addr)})
}

func (e *elements) addBinding(item Binding) {
	e.ports = append(e.ports, nftables.SetElement{Key: name(item.Veth)})
	e.bound = append(e.bound, nftables.SetElement{
		Key: slices.Concat(name(item.Veth), item.MAC, []byte{0, 0}, item.Addr.AsSlice()),
	})
}

func memberKey(bridge string, addr netip.Addr) []byte {
	return append(name(bridge), addr.AsSlice()...)
}

// mustBridgeOf is for addresses that were validated.
func (c Config) mustBridgeOf(addr netip.Addr) Bridge {
	b, err := c.bridgeOf(addr)
	if err != nil {
		panic(err)
	}
	return b
}

func bridgeNames(c Config) []nftables.SetElement {
	var all []nftables.SetElement
	for _, b := range c.Bridges {
		all = append(all, nftables.SetElement{Key: name(b.Name)})
	}
	return all
}

func gateways(c Config) []nftables.SetElement {
	var all []nftables.SetElement
	for _, b := range c.Bridges {
		all = append(all, nftables.SetElement{Key: memberKey(b.Name, b.Gateway)})
	}
	return all
}

func gatewayAddresses(c Config) []nftables.SetElement {
	var all []nftables.SetElement
	for _, b := range c.Bridges {
		all = append(all, nftables.SetElement{Key: b.Gateway.AsSlice()})
	}
	return all
}

func subnets(c Config) []netip.Prefix {
	var all []netip.Prefix
	for _, b := range c.Bridges {
		all = append(all, b.Subnet)
	}
	return all
}

// intervals returns IPv4 prefixes as the kernel wants them: the first address of each range and the
// first after it, in order. Ranges that overlap or touch become one. IPv6 prefixes are left out.
func intervals(prefixes []netip.Prefix) []nftables.SetElement {
	four := []netip.Prefix{}
	for _, p := range prefixes {
		if p.Addr().Is4() {
			four = append(four, p.Masked())
		}
	}
	slices.SortFunc(four, netip.Prefix.Compare)
	var ranges [][2]netip.Addr
	for _, p := range four {
		if n := len(ranges); n > 0 &&
			(p.Addr().Compare(ranges[n-1][1]) <= 0 || p.Addr() == ranges[n-1][1].Next()) {
			if last(p).Compare(ranges[n-1][1]) > 0 {
				ranges[n-1][1] = last(p)
			}
			continue
		}
		ranges = append(ranges, [2]netip.Addr{p.Addr(), last(p)})
	}
	var all []nftables.SetElement
	for _, r := range ranges {
		all = append(all, nftables.SetElement{Key: r[0].AsSlice()})
		// A range up to 255.255.255.255 has no address after it and is left open.
		if after := r[1].Next(); after.IsValid() {
			all = append(all, nftables.SetElement{Key: after.AsSlice(), IntervalEnd: true})
		}
	}
	return all
}

// outside returns the IPv4 addresses that lie in none of the prefixes.
func outside(prefixes []netip.Prefix) (list []netip.Prefix) {
	var split func(netip.Prefix)
	split = func(p netip.Prefix) {
		overlaps := false
		for _, other := range prefixes {
			if other.Addr().Is4() && other.Overlaps(p) {
				if other.Bits() <= p.Bits() {
					return
				}
				overlaps = true
			}
		}
		if !overlaps {
			list = append(list, p)
			return
		}
		low := netip.PrefixFrom(p.Addr(), p.Bits()+1)
		split(low)
		split(netip.PrefixFrom(last(low).Next(), p.Bits()+1))
	}
	split(netip.PrefixFrom(netip.IPv4Unspecified(), 0))
	return list
}

// last returns the last address of an IPv4 prefix.
func last(p netip.Prefix) netip.Addr {
	bytes := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(bytes)
}
