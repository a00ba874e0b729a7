package rules

import (
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
)

// perMessage bounds a message's elements: their list is one attribute, which holds at most 64 KiB.
const perMessage = 400

var accepting = nftables.ChainPolicyAccept

// replacement replaces the kernel's tables by those of the ruleset, whatever is there: each is
// made, so that it can be deleted in any case, deleted, and recreated, all in one transaction.
func replacement(wanted ruleset) *batch {
	b := removal(wanted)
	for _, t := range wanted {
		owner := &nftables.Table{Name: t.name, Family: t.family}
		b.add(func(conn *nftables.Conn) error { conn.AddTable(owner); return nil })
		for i, s := range t.sets {
			kernel := s.kernel(owner)
			kernel.ID = uint32(i + 1) // without one, the library counts in a variable that all share
			b.add(func(conn *nftables.Conn) error { return conn.AddSet(kernel, nil) })
			b.elements(kernel, s.elements, (*nftables.Conn).SetAddElements)
		}
		for _, ch := range t.chains {
			kernel := ch.kernel(owner)
			b.add(func(conn *nftables.Conn) error { conn.AddChain(kernel); return nil })
		}
		for _, ch := range t.chains { // after all chains, because rules go to them
			kernel := ch.kernel(owner)
			for _, exprs := range ch.rules {
				b.add(func(conn *nftables.Conn) error {
					conn.AddRule(&nftables.Rule{Table: owner, Chain: kernel, Exprs: exprs})
					return nil
				})
			}
		}
	}
	return b
}

// removal deletes our tables, which need not exist.
func removal(r ruleset) *batch {
	b := &batch{}
	for _, t := range r {
		owner := &nftables.Table{Name: t.name, Family: t.family}
		b.add(func(conn *nftables.Conn) error {
			conn.AddTable(owner)
			conn.DelTable(owner)
			return nil
		})
	}
	return b
}

// additions adds elements to the sets that they belong in.
func additions(c Config, e elements) *batch {
	b := &batch{}
	b.eachSet(c, e, func(s *nftables.Set, elements []nftables.SetElement) {
		b.elements(s, elements, (*nftables.Conn).SetAddElements)
	})
	return b
}

// removals removes elements, which need not exist: one missing element would undo the whole
// transaction, so each is added first.
func removals(c Config, e elements) *batch {
	b := &batch{}
	b.eachSet(c, e, func(s *nftables.Set, elements []nftables.SetElement) {
		b.elements(s, elements, (*nftables.Conn).SetAddElements)
		b.elements(s, elements, (*nftables.Conn).SetDeleteElements)
	})
	return b
}

// eachSet calls do for each set that has elements.
func (b *batch) eachSet(c Config, e elements, do func(*nftables.Set, []nftables.SetElement)) {
	for _, t := range []table{bridgeSets(c, e), arpSets(c, e), inetSets(c, e)} {
		owner := &nftables.Table{Name: t.name, Family: t.family}
		for _, s := range t.sets {
			if len(s.elements) > 0 {
				do(s.kernel(owner), s.elements)
			}
		}
	}
}

type change func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error

func (b *batch) elements(s *nftables.Set, all []nftables.SetElement, do change) {
	for chunk := range slices.Chunk(all, perMessage) {
		b.add(func(conn *nftables.Conn) error { return do(conn, s, chunk) })
	}
}

// dynamicSize is more than the ports of both bridges, which are at most 1,023 each. Senders that are no
// containers of ours do not get that far.
const dynamicSize = 4096

func (s set) kernel(owner *nftables.Table) *nftables.Set {
	made := &nftables.Set{
		Table: owner, Name: s.name, KeyType: s.key, Interval: s.interval,
		Dynamic: s.dynamic, Concatenation: len(nftables.ConcatSetTypeElements(s.key)) > 1,
	}
	if s.dynamic {
		made.Size = dynamicSize
	}
	if s.key.Name == ifnameType.Name {
		made.KeyByteOrder = binaryutil.NativeEndian // for nft, which shows the names as empty without it
	}
	return made
}

func (c chain) kernel(owner *nftables.Table) *nftables.Chain {
	made := &nftables.Chain{Name: c.name, Table: owner}
	if c.hook != nil {
		made.Type, made.Hooknum, made.Priority, made.Policy = c.kind, c.hook, &c.priority,
			&accepting
	}
	return made
}
