// Package waittest has tests wait: for what no event tells of, in a bubble of testing/synctest for time, and for a filesystem
// that never answers.
package waittest

import (
	"testing"
	"testing/synctest"
	"time"
)

// limit is far more than anything takes that comes at all.
const limit = time.Minute

// Until waits until something holds, and fails the test if it does not come to that.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	if !Comes(holds) {
		t.Fatalf("not within %s: %s", limit, what)
	}
}

// Comes waits until something holds, and reports whether it has come to that.
func Comes(holds func() bool) bool {
	const shortest, longest = 100 * time.Microsecond, 5 * time.Millisecond
	begun := time.Now()
	for pause := shortest; !holds(); pause = min(2*pause, longest) {
		if time.Since(begun) > limit {
			return false
		}
		time.Sleep(pause)
	}
	return true
}

// Pass lets time pass in a bubble, and returns when all that was due by then has been done.
func Pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
