// Package watchdog ends stories that hang, so that a suite says which one it was and goes on, or else ends
// itself and leaves nothing. stacks.go picks the goroutines of a dump that tell why.
package watchdog

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Config says how long stories may take, and what happens to one that takes longer.
type Config struct {
	// Limit is how long a story may take. While another runs inside it, its time stands still, and begins
	// anew after that.
	Limit time.Duration

	// Grace is how long a story that hangs may go on after Break was called.
	Grace time.Duration

	// Reserve is how long before go test's own limit the suite ends, at most; of a short limit a quarter.
	Reserve time.Duration

	// Break ends what the story waits for, so that it fails, and tells why. It is called on a goroutine of
	// its own, and the story does not end before it returns.
	Break func(story string)

	// End is called once, when Break did not help or the suite's time is up. It ends the process.
	End func(why string)
}

// A Story is a *testing.T.
type Story interface {
	Name() string
	Failed() bool
	Deadline() (time.Time, bool)
	Errorf(format string, args ...any)
	Cleanup(func())
}

// A Watchdog watches the stories of a suite, which runs one at a time.
type Watchdog struct {
	cfg   Config
	ended sync.Once

	mu      sync.Mutex
	watches []*watch // each inside the one before
	failed  []string
	late    *time.Timer // for the suite as a whole
	stopped bool
}

type watch struct {
	story    Story
	timer    *time.Timer // nil while it does not count
	hangs    bool
	breaking sync.WaitGroup
}

// New makes a watchdog. All of the configuration is needed.
func New(cfg Config) *Watchdog { return &Watchdog{cfg: cfg} }

// Watch limits the story until its cleanups have run that are registered from now on. For a story that is
// watched already it does nothing. After Stop it does not return.
func (d *Watchdog) Watch(s Story) {
	d.mu.Lock()
	if d.stopped {
		d.mu.Unlock()
		select {}
	}
	defer d.mu.Unlock()
	if outer := d.innermost(); outer != nil {
		if outer.story == s {
			return
		}
		outer.rest()
	}
	w := &watch{story: s}
	d.watches = append(d.watches, w)
	d.limit(w)
	s.Cleanup(func() { d.done(w) })
	if deadline, ok := s.Deadline(); ok && d.late == nil {
		left := time.Until(deadline)
		d.late = time.AfterFunc(left-min(d.cfg.Reserve, left/4), func() {
			d.end(fmt.Sprintf("the time of go test -timeout is nearly up, in %s", d.Running()))
		})
	}
}

// Stop keeps stories from beginning, while the process cleans up and ends.
func (d *Watchdog) Stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
}

// Running is the name of the innermost story under way, or empty.
func (d *Watchdog) Running() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w := d.innermost(); w != nil {
		return w.story.Name()
	}
	return ""
}

// Failed are the names of the stories that have failed, in order; of a story with others inside it, theirs.
func (d *Watchdog) Failed() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for _, name := range d.failed {
		inside := func(other string) bool { return strings.HasPrefix(other, name+"/") }
		if !slices.ContainsFunc(d.failed, inside) {
			names = append(names, name)
		}
	}
	return names
}

func (d *Watchdog) innermost() *watch {
	if len(d.watches) == 0 {
		return nil
	}
	return d.watches[len(d.watches)-1]
}

// limit begins the story's time. The caller holds mu.
func (d *Watchdog) limit(w *watch) {
	w.hangs = false
	d.arm(w, d.cfg.Limit, func() {
		w.hangs = true
		w.breaking.Add(1)
		d.arm(w, d.cfg.Grace, func() {
			go d.end(fmt.Sprintf("%s goes on %v after that", w.story.Name(), d.cfg.Grace))
		})
		go func() {
			defer w.breaking.Done()
			d.cfg.Break(w.story.Name())
			w.story.Errorf("it hangs: it was not done after %v", d.cfg.Limit)
		}()
	})
}

// arm has f called, with mu held, unless the timer is another one by then. The caller holds mu.
func (d *Watchdog) arm(w *watch, after time.Duration, f func()) {
	var timer *time.Timer
	timer = time.AfterFunc(after, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if w.timer == timer {
			f()
		}
	})
	w.timer = timer
}

func (w *watch) rest() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// done ends a watch. While Break is still at work, it is waited for, and its time goes on.
func (d *Watchdog) done(w *watch) {
	d.mu.Lock()
	if !w.hangs {
		w.rest()
	}
	d.mu.Unlock()
	w.breaking.Wait()

	d.mu.Lock()
	defer d.mu.Unlock()
	w.rest()
	d.watches = slices.DeleteFunc(d.watches, func(other *watch) bool { return other == w })
	if w.story.Failed() {
		d.failed = append(d.failed, w.story.Name())
	}
	if outer := d.innermost(); outer != nil {
		d.limit(outer)
	}
}

func (d *Watchdog) end(why string) { d.ended.Do(func() { d.cfg.End(why) }) }
