package rules

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
)

// families are those of the tables that a Table has, all of one name.
var families = []nftables.TableFamily{nftables.TableFamilyBridge, nftables.TableFamilyARP,
	nftables.TableFamilyINet}

// Left returns those of the given names that tables of ours still have.
func Left(names []string) ([]string, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("cannot use nftables: %w", err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		return nil, fmt.Errorf("cannot list the tables of nftables: %w%s", err, remedy(err))
	}
	var left []string
	for _, t := range tables {
		if slices.Contains(names, t.Name) && slices.Contains(families, t.Family) {
			left = append(left, t.Name)
		}
	}
	slices.Sort(left)
	return slices.Compact(left), nil
}

// RemoveTables deletes the tables of a name, of all families, whoever made them: nothing of ours
// restricts their containers then. It is no error if there are none. netns is the descriptor of a
// network namespace, or 0 for the process's own.
func RemoveTables(netns int, name string) error {
	w, err := dial(netns)
	if err != nil {
		return fmt.Errorf("cannot remove the tables %s of nftables: %w%s", name, err, remedy(err))
	}
	defer w.close()
	var all ruleset
	for _, family := range families {
		all = append(all, table{family: family, name: name})
	}
	if _, err := w.commit(removal(all)); err != nil {
		return fmt.Errorf("cannot remove the tables %s of nftables: %w%s", name, err, remedy(err))
	}
	return nil
}
