package rules

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// check compares the kernel's rules, sets and elements with what they should be, and returns how
// they differ, or an empty string. When no table of the namespace has changed since, it asks only
// for the generation and the bridges. It needs mu.
func (t *Table) check(ctx context.Context) (string, error) {
	drift, err := t.compare(ctx)
	if err != nil {
		return "", fmt.Errorf("cannot check the egress rules: %w", err)
	}
	return drift, nil
}

func (t *Table) compare(ctx context.Context) (string, error) {
	if err := t.ready(); err != nil {
		return "", err
	}
	for _, b := range t.cfg.Bridges {
		if l, err := t.wire.link(b.Name); err == nil && !l.linkLocalUnlearned {
			return fmt.Sprintf("bridge %q learns from link-local frames", b.Name), nil
		}
	}
	// Others may change their tables while ours are listed, and the list may then mix old and new.
	for range 10 {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		before, err := t.wire.generation()
		if err != nil {
			return "", errors.Join(err, t.redial())
		}
		if before == t.verified {
			return "", nil
		}
		drift, listErr := t.listAndCompare()
		after, err := t.wire.generation()
		if err != nil {
			return "", errors.Join(err, t.redial())
		}
		if before != after {
			continue
		}
		if listErr != nil {
			return "", errors.Join(listErr, t.redial())
		}
		if drift == "" {
			t.verified = after
		}
		return drift, nil
	}
	return "", errors.New("the rules of this host change faster than they can be listed")
}

func (t *Table) listAndCompare() (string, error) {
	if err := t.wire.ruleSock.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	wanted := render(t.cfg, t.want.elements(t.cfg))
	for _, w := range wanted {
		lines, err := t.wire.list(w)
		if err != nil {
			return "", err
		}
		if drift := difference(describe(w), lines); drift != "" {
			return drift, nil
		}
	}
	return "", nil
}
