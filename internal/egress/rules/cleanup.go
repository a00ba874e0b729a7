package rules

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
)

// families are those of the tables that a Table has, all under its one name.
var families = []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge, nftables.TableFamilyARP}

// Left returns which of the names belong to tables that there are.
func Left(names []string) ([]string, error) {
	var left []string
	err := eachNamed(names, func(_ *nftables.Conn, t *nftables.Table) { left = append(left, t.Name) })
	slices.Sort(left)
	return slices.Compact(left), err
}

// RemoveLeft takes away the tables with these names, whoever made them: what they held is held by nothing of ours
// then. It is for who uninstalls.
func RemoveLeft(names []string) error {
	return eachNamed(names, func(conn *nftables.Conn, t *nftables.Table) { conn.DelTable(t) })
}

// eachNamed asks for all tables and does what is to be done with those that have one of the names, in one transaction.
func eachNamed(names []string, do func(*nftables.Conn, *nftables.Table)) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("cannot use nftables: %w", err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		return fmt.Errorf("cannot list the tables of nftables: %w%s", err, remedy(err))
	}
	for _, t := range tables {
		if slices.Contains(names, t.Name) && slices.Contains(families, t.Family) {
			do(conn, t)
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("cannot remove tables of nftables: %w%s", err, remedy(err))
	}
	return nil
}
