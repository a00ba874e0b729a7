package guard

import (
	"runtime"
	"sync"
)

// semaphore lets only so many goroutines copy at a time, and users take turns: Go's scheduler is
// fair to goroutines, of which a user has as many as it likes. Code that has acquired it must not
// block.
type semaphore struct {
	mu     sync.Mutex
	free   int
	queues map[string]*queue
	order  []*queue
}

// queue holds one user's waiting goroutines.
type queue struct {
	user    string
	waiting []chan struct{}
}

func newSemaphore(atOnce int) *semaphore {
	return &semaphore{free: atOnce, queues: map[string]*queue{}}
}

// acquire waits for the user's turn.
func (s *semaphore) acquire(user string) {
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.mu.Unlock()
		return
	}
	mine := make(chan struct{})
	q := s.queues[user]
	if q == nil {
		q = &queue{user: user}
		s.queues[user] = q
		s.order = append(s.order, q)
	}
	q.waiting = append(q.waiting, mine)
	s.mu.Unlock()
	<-mine
}

// release gives the turn to the user who is next. It yields: a goroutine that was just woken runs
// before those that wait for a processor, so a chain of turns would keep them from one, and from
// their own turns, for as long as 10 ms.
func (s *semaphore) release() {
	defer runtime.Gosched()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.order) == 0 {
		s.free++
		return
	}
	q := s.order[0]
	s.order = s.order[1:]
	close(q.waiting[0])
	if q.waiting = q.waiting[1:]; len(q.waiting) > 0 {
		s.order = append(s.order, q)
	} else {
		delete(s.queues, q.user)
	}
}
