package rules

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// describe returns the canonical form of a table: a line for each thing in it, except for the
// elements of sets that the kernel fills.
func describe(t table) []string {
	owner := &nftables.Table{Name: t.name, Family: t.family}
	lines := []string{describeTable(owner)}
	for _, s := range t.sets {
		lines = append(lines, describeSet(s.kernel(owner)))
		if !s.dynamic {
			lines = append(lines, describeElements(s.name, s.elements)...)
		}
	}
	for _, c := range t.chains {
		lines = append(lines, describeChain(c.kernel(owner)))
		for i, exprs := range c.rules {
			lines = append(lines, describeRule(c.name, i, exprs))
		}
	}
	slices.Sort(lines)
	return lines
}

func describeTable(t *nftables.Table) string { return fmt.Sprintf("table flags %d", t.Flags) }

func describeSet(s *nftables.Set) string {
	return fmt.Sprintf("set %s of %s interval %t timeout %t dynamic %t map %t size %d", s.Name,
		s.KeyType.Name,
		s.Interval, s.HasTimeout, s.Dynamic, s.IsMap, s.Size)
}

func describeElements(set string, all []nftables.SetElement) []string {
	var lines []string
	for _, e := range all {
		lines = append(lines, fmt.Sprintf("element of %s: %s end %t", set,
			hex.EncodeToString(e.Key), e.IntervalEnd))
	}
	return lines
}

func describeChain(c *nftables.Chain) string {
	if c.Hooknum == nil {
		return "chain " + c.Name
	}
	policy := nftables.ChainPolicyAccept
	if c.Policy != nil {
		policy = *c.Policy
	}
	return fmt.Sprintf("chain %s type %s hook %d priority %d policy %d", c.Name, c.Type, *c.Hooknum,
		*c.Priority, policy)
}

func describeRule(chain string, place int, exprs []expr.Any) string {
	var words []string
	for _, e := range exprs {
		if reject, is := e.(*expr.Reject); is && reject.Type == 1 {
			e = &expr.Reject{Type: reject.Type} // a reset has no code
		}
		words = append(words, describeExpr(e))
	}
	return fmt.Sprintf("rule %s %02d %s", chain, place, strings.Join(words, " "))
}

// describeExpr describes an expression with those inside of it, instead of where they are in
// memory.
func describeExpr(e expr.Any) string {
	if d, is := e.(*expr.Dynset); is {
		var inside []string
		for _, e := range d.Exprs {
			inside = append(inside, describeExpr(e))
		}
		return fmt.Sprintf("dynset %s key %d operation %d %s", d.SetName, d.SrcRegKey, d.Operation,
			strings.Join(inside, " "))
	}
	return strings.TrimPrefix(fmt.Sprintf("%+v", e), "&")
}

// list describes what the kernel has for a table.
func (w *wire) list(t table) (lines []string, err error) {
	owner, err := w.findTable(t)
	if owner == nil || err != nil {
		return nil, err
	}
	lines = append(lines, describeTable(owner))
	sets, err := w.rules.GetSets(owner)
	if err != nil {
		return nil, fmt.Errorf("sets: %w", err)
	}
	for _, s := range sets {
		lines = append(lines, describeSet(s))
		if s.Dynamic {
			continue
		}
		elements, err := w.rules.GetSetElements(s)
		if err != nil {
			return nil, fmt.Errorf("elements of %s: %w", s.Name, err)
		}
		lines = append(lines, describeElements(s.Name, elements)...)
	}
	chains, err := w.rules.ListChainsOfTableFamily(t.family)
	if err != nil {
		return nil, fmt.Errorf("chains: %w", err)
	}
	for _, c := range chains {
		if c.Table.Name != t.name {
			continue
		}
		lines = append(lines, describeChain(c))
		rules, err := w.rules.GetRules(owner, c)
		if err != nil {
			return nil, fmt.Errorf("rules of %s: %w", c.Name, err)
		}
		for i, r := range rules {
			lines = append(lines, describeRule(c.Name, i, r.Exprs))
		}
	}
	slices.Sort(lines)
	return lines, nil
}

func (w *wire) findTable(t table) (*nftables.Table, error) {
	tables, err := w.rules.ListTablesOfFamily(t.family)
	if err != nil {
		return nil, fmt.Errorf("tables: %w", err)
	}
	for _, found := range tables {
		if found.Name == t.name {
			found.Family = t.family
			return found, nil
		}
	}
	return nil, nil
}

// difference names the first line that only one of two sorted lists has.
func difference(wanted, found []string) string {
	if len(found) == 0 {
		return "a table is gone"
	}
	for len(wanted) > 0 || len(found) > 0 {
		switch {
		case len(found) == 0 || len(wanted) > 0 && wanted[0] < found[0]:
			return "missing: " + wanted[0]
		case len(wanted) == 0 || found[0] < wanted[0]:
			return "not ours: " + found[0]
		}
		wanted, found = wanted[1:], found[1:]
	}
	return ""
}
