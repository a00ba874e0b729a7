package main

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// Ways take turns, each turn begins with another way, and the first ones do not count.
func TestByTurns(t *testing.T) {
	var order []string
	var a, b sample
	call := func(name string) func() (time.Duration, error) {
		return func() (time.Duration, error) {
			order = append(order, name)
			return time.Duration(len(order)), nil
		}
	}
	err := byTurns(2, 1, once(&a, call("a")), repeated(2, &b, call("b")))
	if err != nil || !slices.Equal(order, []string{"a", "b", "b", "b", "b", "a", "a", "b", "b"}) {
		t.Errorf("%q, %v", order, err)
	}
	if !slices.Equal(a, sample{6, 7}) || !slices.Equal(b, sample{4, 5, 8, 9}) {
		t.Errorf("%v, %v", a, b)
	}
}

// A way that fails ends all.
func TestTurnThatFails(t *testing.T) {
	why := errors.New("refused")
	var a, b sample
	err := byTurns(3, 0,
		once(&a, func() (time.Duration, error) { return 1, nil }),
		once(&b, func() (time.Duration, error) { return 0, why }))
	if !errors.Is(err, why) || len(a) != 1 || len(b) != 0 {
		t.Errorf("%v, %v, %v", err, a, b)
	}
}
