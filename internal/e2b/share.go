package e2b

import (
	"math"

	"github.com/daycare-run/sandbox/internal/budget"
)

// share is something of which there is only so much for all sandboxes. Those of one owner have a share of it, however many they
// are (see budget.Pool), and one sandbox has so much of that at the most.
type share struct{ byOwner, bySandbox *budget.Pool }

func newShare(total, mostOfOne int) share {
	return share{budget.NewPool(total, 0), budget.NewPool(math.MaxInt, mostOfOne)}
}

// take reports whether a sandbox of an owner's has got n more. All or nothing.
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

// give takes n back.
func (s share) give(owner, id string, n int) {
	s.byOwner.Give(owner, n)
	s.bySandbox.Give(id, n)
}
