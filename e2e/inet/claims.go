package inet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A claim is a range that the host has an address in or a route to.
type claim struct {
	prefix netip.Prefix
	link   string
	ours   bool // it belongs to another Inet
}

// claims returns what the host knows, without its default routes and their halves and quarters. The
// host's addresses are in its local table as routes.
func claims(host *netlink.Handle) ([]claim, error) {
	links, err := dump(host.LinkList)
	if err != nil {
		return nil, err
	}
	byIndex := map[int]claim{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = claim{link: l.Attrs().Name, ours: l.Attrs().Alias == mark}
	}
	var all []claim
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := dump(func() ([]netlink.Route, error) {
			return host.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC},
				netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			c := byIndex[r.LinkIndex]
			if c.prefix = toPrefix(r.Dst); c.prefix.Bits() >= 8 {
				all = append(all, c)
			}
		}
	}
	return all, nil
}

// dump asks again when the kernel's list changed while it was read.
func dump[T any](list func() ([]T, error)) (all []T, err error) {
	for range 100 {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// settle chooses the pair, and fails when something is taken. What stands in the way and was made
// by a process that is gone, it removes first.
func (c *Config) settle(host *netlink.Handle) error {
	taken, err := claims(host)
	if err != nil {
		return err
	}
	for _, t := range taken {
		if t.ours && slices.ContainsFunc(c.wanted(), t.prefix.Overlaps) {
			if err := removeStale(host, t.link); err != nil && !errors.Is(err, errInUse) {
				return err
			}
		}
	}
	if taken, err = claims(host); err != nil {
		return err
	}
	return c.check(taken)
}

// wanted are the ranges that the configuration names.
func (c *Config) wanted() []netip.Prefix {
	all := []netip.Prefix{c.Public, c.Pair}
	for _, addr := range c.Extra {
		all = append(all, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return all
}

// check returns all that the configuration wants and the host has, and chooses the pair.
func (c *Config) check(taken []claim) error {
	var faults []error
	for _, want := range []netip.Prefix{c.Public, c.Pair} {
		if by, ok := overlap(want, taken); ok {
			faults = append(faults, by.conflict(want))
		}
	}
	for _, addr := range c.Extra {
		want := netip.PrefixFrom(addr, addr.BitLen())
		for _, t := range taken {
			if t.prefix == want || t.ours && t.prefix.Overlaps(want) {
				faults = append(faults, t.conflict(want))
				break
			}
		}
	}
	for pair := netip.PrefixFrom(defaultPairs.Addr(),
		30); !c.Pair.IsValid(); pair = netip.PrefixFrom(nth(pair, 4), 30) {
		if !defaultPairs.Contains(pair.Addr()) {
			faults = append(faults, fmt.Errorf("no /30 of %s is free", defaultPairs))
			break
		}
		if _, ok := overlap(pair, taken); !ok && !pair.Overlaps(c.Public) {
			c.Pair = pair
		}
	}
	return errors.Join(faults...)
}

func overlap(want netip.Prefix, taken []claim) (claim, bool) {
	for _, t := range taken {
		if t.prefix.Overlaps(want) {
			return t, true
		}
	}
	return claim{}, false
}

func (c claim) conflict(want netip.Prefix) error {
	whose := "link"
	if c.ours {
		whose = "the test internet"
	}
	return fmt.Errorf("%s is taken: the host has %s, by %s %q", want, c.prefix, whose, c.link)
}

// toPrefix returns the zero prefix, which overlaps none, for a default route without a destination.
func toPrefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	addr, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones).Masked()
}

func toIPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
