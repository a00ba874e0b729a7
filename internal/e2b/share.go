package e2b

import "github.com/daycare-run/sandbox/internal/fair"

// share is something that all sandboxes share. Those of one owner together get a share of it,
// however many they are (see fair.Pool), and one sandbox gets at most a given number of that.
type share struct{ byOwner, bySandbox *fair.Pool }

func newShare(total, limit int) share {
	return share{fair.NewPool(total, 0), fair.Each(limit)}
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
