package waittest

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, seen := time.Now(), 0
		if !Comes(func() bool { seen++; return time.Since(begun) > time.Second }) || time.Since(begun) > 2*time.Second {
			t.Errorf("seen %d times in %s", seen, time.Since(begun))
		}
		if Comes(func() bool { return false }) || time.Since(begun) > 2*limit {
			t.Errorf("what never holds took %s", time.Since(begun))
		}
	})
}

func TestPass(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		done := false
		time.AfterFunc(time.Hour, func() { done = true })
		Pass(time.Hour)
		if !done {
			t.Error("what was due has not been done")
		}
	})
}
