package rules

import (
	"bytes"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/google/nftables"
)

// A Claim has the networks that a table of this package is for, whichever service made it.
type Claim struct {
	Table   string
	Bridges []string
	Subnets []netip.Prefix
}

// Claims returns the claims of all our tables in a network namespace: that of the descriptor netns
// or, if it is 0, of the process. Our tables are known by their sets.
func Claims(netns int) ([]Claim, error) {
	w, err := dial(netns)
	if err != nil {
		return nil, fmt.Errorf("cannot list the tables of nftables: %w", err)
	}
	defer w.close()
	tables, err := w.rules.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("cannot list the tables of nftables: %w", err)
	}
	var claims []Claim
	for _, found := range tables {
		found.Family = nftables.TableFamilyINet
		if c, ours := w.claim(found); ours {
			claims = append(claims, c)
		}
	}
	return claims, nil
}

// claim reads a table. It reports false if the table is not ours, or is deleted meanwhile.
func (w *wire) claim(found *nftables.Table) (Claim, bool) {
	c := Claim{Table: found.Name}
	sets, err := w.rules.GetSets(found)
	if err != nil {
		return c, false
	}
	ours := 0
	for _, s := range sets {
		if !slices.Contains([]string{bridgesSet, subnetsSet, gatewaysSet}, s.Name) {
			continue
		}
		elements, err := w.rules.GetSetElements(s)
		if err != nil {
			return c, false
		}
		ours++
		switch s.Name {
		case bridgesSet:
			for _, e := range elements {
				c.Bridges = append(c.Bridges, string(bytes.TrimRight(e.Key, "\x00")))
			}
		case subnetsSet:
			c.Subnets = prefixesOf(elements)
		}
	}
	return c, ours == 3
}

// prefixesOf converts intervals of IPv4 addresses: each to the smallest prefix that holds it.
func prefixesOf(elements []nftables.SetElement) (list []netip.Prefix) {
	slices.SortFunc(elements, func(a, b nftables.SetElement) int {
		return bytes.Compare(a.Key, b.Key)
	})
	var first netip.Addr
	for _, e := range elements {
		addr, ok := netip.AddrFromSlice(e.Key)
		if !ok || !addr.Is4() {
			continue
		}
		if !e.IntervalEnd {
			first = addr
			continue
		}
		if !first.IsValid() {
			continue // the kernel's own end of the range before the first
		}
		a, b := first.As4(), addr.Prev().As4()
		same := 0
		for i := range a {
			if same += bits.LeadingZeros8(a[i] ^ b[i]); a[i] != b[i] {
				break
			}
		}
		list = append(list, netip.PrefixFrom(first, same).Masked())
		first = netip.Addr{}
	}
	return list
}
