package guard

import (
	"testing"
	"testing/synctest"
)

// TestTheSemaphoreTakesTurns: a user's thousandth goroutine waits for the others of that user, another's first for one of them.
func TestTheSemaphoreTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSemaphore(1)
		s.acquire("many")
		order := make(chan string, 20)
		for _, user := range []string{"many", "many", "many", "many", "one"} {
			go func() {
				s.acquire(user)
				order <- user
				s.release()
			}()
			synctest.Wait()
		}
		s.release()
		synctest.Wait()
		got := ""
		for range 5 {
			got += <-order + " "
		}
		if got != "many one many many many " {
			t.Errorf("%s", got)
		}
		if s.free != 1 || len(s.queues) != 0 || len(s.order) != 0 {
			t.Errorf("%d free, %d queues", s.free, len(s.queues))
		}
	})
}
