// Package watchdog limits how long the scenarios of a suite may take, which run beside each other,
// and tells which one hangs. stacks.go picks the goroutines of a dump that tell why.
package watchdog

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Config says how long scenarios may take, and what happens to the suite when one takes longer.
type Config struct {
	// Limit is how long a scenario may take, with all its cases and cleanups.
	Limit time.Duration

	// Reserve is how long before go test's own limit the suite ends, at most; of a short limit a
	// quarter.
	Reserve time.Duration

	// End is called once, with the scenarios that hang: one whose time is up, or all that run when
	// that of the suite is. It ends the process.
	End func(why string, scenarios []string)
}

// A Scenario is a *testing.T.
type Scenario interface {
	Name() string
	Failed() bool
	Deadline() (time.Time, bool)
	Cleanup(func())
}

// A Watchdog watches the scenarios of a suite. It is safe for concurrent use.
type Watchdog struct {
	cfg   Config
	ended sync.Once

	mu      sync.Mutex
	running map[string]*time.Timer // by the scenario's name
	failed  []string
	late    *time.Timer // for the suite as a whole
	stopped bool
}

// New makes a watchdog. All of the configuration is needed.
func New(cfg Config) *Watchdog { return &Watchdog{cfg: cfg, running: map[string]*time.Timer{}} }

// Watches reports whether the scenario, or one that it is a case of, is watched.
func (d *Watchdog) Watches(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for watched := range d.running {
		if name == watched || strings.HasPrefix(name, watched+"/") {
			return true
		}
	}
	return false
}

// Watch limits the scenario until its cleanups have run that are registered from now on. After Stop
// it does not return.
func (d *Watchdog) Watch(s Scenario) {
	d.mu.Lock()
	if d.stopped {
		d.mu.Unlock()
		select {}
	}
	defer d.mu.Unlock()
	name := s.Name()
	d.running[name] = time.AfterFunc(d.cfg.Limit, func() {
		d.end(fmt.Sprintf("%s hangs: it was not done after %v", name, d.cfg.Limit), []string{name})
	})
	s.Cleanup(func() { d.done(s) })
	if deadline, ok := s.Deadline(); ok && d.late == nil {
		left := time.Until(deadline)
		d.late = time.AfterFunc(left-min(d.cfg.Reserve, left/4), func() {
			d.end("the time of go test -timeout is nearly up", d.Running())
		})
	}
}

func (d *Watchdog) done(s Scenario) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running[s.Name()].Stop()
	delete(d.running, s.Name())
	if s.Failed() {
		d.failed = append(d.failed, s.Name())
	}
}

// Stop keeps scenarios from beginning, while the process cleans up and ends.
func (d *Watchdog) Stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
}

// Running returns the names of the scenarios under way, sorted.
func (d *Watchdog) Running() (names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.running {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Failed returns the names of the scenarios that have failed, in the order in which they ended.
func (d *Watchdog) Failed() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.failed)
}

func (d *Watchdog) end(why string, scenarios []string) {
	d.ended.Do(func() { d.cfg.End(why, scenarios) })
}
