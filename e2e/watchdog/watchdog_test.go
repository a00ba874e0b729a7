package watchdog

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	limit   = 5 * time.Minute
	shorter = 4 * time.Minute
)

// A scenario is a test that a test runs.
type scenario struct {
	name     string
	deadline time.Time
	failed   bool
	cleanups []func()
}

func (s *scenario) Name() string                { return s.name }
func (s *scenario) Failed() bool                { return s.failed }
func (s *scenario) Deadline() (time.Time, bool) { return s.deadline, !s.deadline.IsZero() }
func (s *scenario) Cleanup(f func())            { s.cleanups = append(s.cleanups, f) }

func (s *scenario) end() {
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
}

// A suite notes when its watchdog ends it, and why.
type suite struct {
	*Watchdog
	mu    sync.Mutex
	notes []string
}

func newSuite() *suite {
	s, began := &suite{}, time.Now()
	s.Watchdog = New(Config{Limit: limit, Reserve: 90 * time.Second, End: func(why string, scenarios []string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.notes = append(s.notes, fmt.Sprintf("%v %s: %v", time.Since(began), why, scenarios))
	}})
	return s
}

// run watches a scenario that takes so long.
func (s *suite) run(name string, takes time.Duration, fails bool) {
	one := &scenario{name: name, failed: fails}
	s.Watch(one)
	time.Sleep(takes)
	one.end()
}

func (s *suite) noted(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, s.notes); diff != "" {
		t.Error(diff)
	}
}

// Each scenario has its own time, whatever runs beside it.
func TestScenariosThatEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSuite()
		var beside sync.WaitGroup
		for i := range 3 {
			beside.Go(func() {
				time.Sleep(time.Duration(i) * 2 * time.Minute)
				s.run(fmt.Sprint("Test", i), shorter, i == 1)
			})
		}
		time.Sleep(shorter - time.Second)
		if got := s.Running(); !slices.Equal(got, []string{"Test0", "Test1"}) {
			t.Errorf("%q run", got)
		}
		beside.Wait()
		time.Sleep(time.Hour)
		s.noted(t)
		if got := s.Failed(); !slices.Equal(got, []string{"Test1"}) || len(s.Running()) > 0 {
			t.Errorf("%q have failed, and %q run", got, s.Running())
		}
	})
}

// One that hangs ends the suite, once, by its name.
func TestAScenarioThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSuite()
		var beside sync.WaitGroup
		beside.Go(func() { s.run("TestA/runsc", time.Hour, false) })
		time.Sleep(time.Minute)
		beside.Go(func() { s.run("TestA/runc", time.Hour, false) })
		beside.Wait()
		s.noted(t, "5m0s TestA/runsc hangs: it was not done after 5m0s: [TestA/runsc]")
	})
}

func TestCasesAreOfTheirScenario(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSuite()
		one := &scenario{name: "TestA/runsc"}
		s.Watch(one)
		for name, want := range map[string]bool{"TestA/runsc": true, "TestA/runsc/a_case": true, "TestA": false, "TestA/runsc@current": false} {
			if got := s.Watches(name); got != want {
				t.Errorf("%s: %t", name, got)
			}
		}
		one.end()
		if s.Watches("TestA/runsc/a_case") {
			t.Error("a scenario that has ended is watched")
		}
	})
}

func TestTheSuitesTimeIsUp(t *testing.T) {
	for timeout, want := range map[time.Duration]string{40 * time.Minute: "38m30s", time.Minute: "45s"} {
		synctest.Test(t, func(t *testing.T) {
			s := newSuite()
			deadline := time.Now().Add(timeout)
			for i := range 1000 {
				one := &scenario{name: fmt.Sprint("Test", i), deadline: deadline}
				s.Watch(one)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				one.end()
			}
			synctest.Wait()
			if len(s.notes) != 1 || !strings.HasPrefix(s.notes[0], want+" the time of go test -timeout is nearly up: [Test") {
				t.Errorf("%v: %q", timeout, s.notes)
			}
		})
	}
}
