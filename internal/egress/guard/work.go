package guard

import (
	"slices"
	"sync"
	"sync/atomic"
)

// work bounds how many goroutines of each user process what they have read. net/http takes a
// hundred times as long to process a head as to read it, and a turn of the semaphore cannot be kept
// for that: net/http may wait meanwhile. This makes only others of the same user wait.
type work struct {
	most int // of one user at a time

	mu    sync.Mutex
	users map[string]*crew // those with something under way
}

type crew struct {
	busy    int
	waiting []chan struct{}
}

func newWork(most int) *work { return &work{most: most, users: map[string]*crew{}} }

// begin waits until the user has fewer than the most under way. It reports false if ended is closed
// before.
func (w *work) begin(user string, ended <-chan struct{}) bool {
	w.mu.Lock()
	c := w.users[user]
	if c == nil {
		c = &crew{}
		w.users[user] = c
	}
	if c.busy < w.most {
		c.busy++
		w.mu.Unlock()
		return true
	}
	mine := make(chan struct{})
	c.waiting = append(c.waiting, mine)
	w.mu.Unlock()
	select {
	case <-mine:
		return true
	case <-ended:
	}
	w.mu.Lock()
	i := slices.Index(c.waiting, mine)
	if i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
	}
	w.mu.Unlock()
	if i < 0 { // it has begun just now
		w.end(user)
	}
	return false
}

// end lets the next one of the user begin.
func (w *work) end(user string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.users[user]
	if len(c.waiting) > 0 {
		close(c.waiting[0])
		c.waiting = c.waiting[1:]
		return
	}
	if c.busy--; c.busy == 0 {
		delete(w.users, user)
	}
}

// work counts the connection as working, from a read until rest. over says that nothing more is
// read there.
func (s *httpSession) work(over *atomic.Bool) {
	if s.working.Load() || !s.guard.work.begin(s.endpoint.User(), s.life.Done()) {
		return
	}
	if !s.working.CompareAndSwap(false, true) {
		s.guard.work.end(s.endpoint.User())
	}
	if over.Load() { // and so nothing may follow that would end the work
		s.rest()
	}
}

// rest is called before anything that may wait: reading, writing, connecting, and the end.
func (s *httpSession) rest() {
	if s.working.CompareAndSwap(true, false) {
		s.guard.work.end(s.endpoint.User())
	}
}
