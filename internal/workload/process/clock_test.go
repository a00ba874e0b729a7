package process

import (
	"slices"
	"sync"
	"time"
)

var monday = time.Date(2026, 1, 5, 9, 0, 0, 0, time.UTC)

// fakeClock goes on when a test says so.
type fakeClock struct {
	mu     sync.Mutex
	time   time.Time
	timers []*fakeTimer
}

type fakeTimer struct {
	of  *fakeClock
	due time.Time
	f   func()
}

func (t *fakeTimer) Stop() bool {
	c := t.of
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.timers)
	c.timers = slices.DeleteFunc(c.timers, func(other *fakeTimer) bool { return other == t })
	return len(c.timers) < before
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.time
}

func (c *fakeClock) AfterFunc(d time.Duration, f func()) Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	timer := &fakeTimer{c, c.time.Add(d), f}
	c.timers = append(c.timers, timer)
	return timer
}

// advance moves the time and fires what is due.
func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	c.time = c.time.Add(d)
	var due []*fakeTimer
	c.timers = slices.DeleteFunc(c.timers, func(timer *fakeTimer) bool {
		if timer.due.After(c.time) {
			return false
		}
		due = append(due, timer)
		return true
	})
	c.mu.Unlock()
	for _, timer := range due {
		timer.f()
	}
}

// waiting are the delays until timers that are still to fire.
func (c *fakeClock) waiting() []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []time.Duration
	for _, timer := range c.timers {
		all = append(all, timer.due.Sub(c.time))
	}
	return all
}
