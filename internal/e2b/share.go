package e2b

import (
	"math"

	"github.com/daycare-run/sandbox/internal/budget"
)

// share is something that all sandboxes share. Those of one owner together get a share of it,
// however many they are (see budget.Pool), and one sandbox gets at most a given number of that.
type share struct{ byOwner, bySandbox *budget.Pool }

func newShare(total, mostOfOne int) share {
	return share{budget.NewPool(total, 0), budget.NewPool(math.MaxInt, mostOfOne)}
}

// take takes n for a sandbox of an owner's, all or nothing, and reports whether it could.
func (s share) take(owner, id string, n int) bool {
	if !s.byOwner.Take(owner, n) {
		return false
	}
	if !s.bySandbox.Take(id, n) {
		s.byOwner.Give(owner, n)
		return false
	}
	return true
}

// give gives n back.
func (s share) give(owner, id string, n int) {
	s.byOwner.Give(owner, n)
	s.bySandbox.Give(id, n)
}
