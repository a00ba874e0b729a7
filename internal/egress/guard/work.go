package guard

import "sync/atomic"

// net/http takes a hundred times as long to process a head as to read it, and a turn to copy cannot be
// kept for that: net/http may wait meanwhile. So what each user has processed at a time is bounded by
// turns of its own, which only others of the same user wait for.

// work counts the connection as working, from a read until rest. over says that nothing more is
// read there.
func (s *httpSession) work(over *atomic.Bool) {
	if s.working.Load() || !s.guard.work.Begin(s.who.User(), s.life.Done()) {
		return
	}
	if !s.working.CompareAndSwap(false, true) {
		s.guard.work.End(s.who.User())
	}
	if over.Load() { // and so nothing may follow that would end the work
		s.rest()
	}
}

// rest is called before anything that may wait: reading, writing, connecting, and the end.
func (s *httpSession) rest() {
	if s.working.CompareAndSwap(true, false) {
		s.guard.work.End(s.who.User())
	}
}
