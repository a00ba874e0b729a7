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
	limit = 5 * time.Minute
	grace = time.Minute

	// shorter than the limit
	shorter = 4 * time.Minute
)

// A told is a story that the test tells.
type told struct {
	name     string
	deadline time.Time
	cleanups []func()

	mu     sync.Mutex
	errors []string
}

func (s *told) Name() string                { return s.name }
func (s *told) Deadline() (time.Time, bool) { return s.deadline, !s.deadline.IsZero() }
func (s *told) Cleanup(f func())            { s.cleanups = append(s.cleanups, f) }

func (s *told) Errorf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errors = append(s.errors, fmt.Sprintf(format, args...))
}

func (s *told) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.errors) > 0
}

func (s *told) end() {
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
}

// A suite notes what its watchdog does, and when.
type suite struct {
	*Watchdog
	began time.Time
	// broken is called by Break; nil does nothing.
	broken func()

	mu    sync.Mutex
	notes []string
}

func newSuite() *suite {
	s := &suite{began: time.Now()}
	s.Watchdog = New(Config{Limit: limit, Grace: grace, Reserve: 90 * time.Second,
		Break: func(story string) {
			s.note("break " + story)
			if s.broken != nil {
				s.broken()
			}
		},
		End: func(why string) { s.note("end: " + why) },
	})
	return s
}

func (s *suite) note(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes = append(s.notes, fmt.Sprintf("%v %s", time.Since(s.began), text))
}

// tell watches a story that takes so long.
func (s *suite) tell(name string, takes time.Duration) *told {
	t := &told{name: name}
	s.Watch(t)
	time.Sleep(takes)
	synctest.Wait()
	t.end()
	return t
}

func (s *suite) noted(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, s.notes); diff != "" {
		t.Error(diff)
	}
}

func TestStoriesThatEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSuite()
		s.tell("TestA", shorter)
		s.tell("TestB", shorter)
		time.Sleep(time.Hour)
		s.noted(t)
		if s.Failed() != nil || s.Running() != "" {
			t.Errorf("%q %q", s.Failed(), s.Running())
		}
	})
}

func TestAStoryThatIsBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSuite()
		story := s.tell("TestA/runsc", limit+grace/2)
		if want := []string{"it hangs: it was not done after 5m0s"}; !slices.Equal(story.errors, want) {
			t.Errorf("%q", story.errors)
		}
		s.tell("TestB", shorter)
		s.noted(t, "5m0s break TestA/runsc")
		if got := s.Failed(); !slices.Equal(got, []string{"TestA/runsc"}) {
			t.Errorf("%q", got)
		}
	})
}

func TestAStoryThatGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSuite()
		s.tell("TestA/runsc", time.Hour)
		s.noted(t, "5m0s break TestA/runsc", "6m0s end: TestA/runsc goes on 1m0s after that")
	})
}

func TestABreakThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSuite()
		release := make(chan struct{})
		s.broken = func() { <-release }
		story := &told{name: "TestA"}
		s.Watch(story)
		time.Sleep(limit)
		synctest.Wait()
		ended := make(chan struct{})
		go func() {
			story.end()
			close(ended)
		}()
		time.Sleep(grace)
		s.noted(t, "5m0s break TestA", "6m0s end: TestA goes on 1m0s after that")
		select {
		case <-ended:
			t.Error("the story has ended before Break, whose word it has to hear")
		default:
		}
		close(release)
		<-ended
		if !story.Failed() {
			t.Error("a story that hung has not failed")
		}
	})
}

func TestStoriesInsideAStory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSuite()
		outer := &told{name: "TestA"}
		s.Watch(outer)
		s.Watch(outer)
		for range 3 {
			time.Sleep(shorter)
			s.tell("TestA/runsc", shorter)
		}
		s.noted(t)
		s.tell("TestA/runc", limit+grace/2)
		time.Sleep(limit)
		synctest.Wait()
		outer.end()
		s.noted(t, "29m0s break TestA/runc", "34m30s break TestA")
		if len(outer.cleanups) != 1 {
			t.Errorf("%d cleanups", len(outer.cleanups))
		}
		s.tell("TestAB", 0).Errorf("of its own")
		if got := s.Failed(); !slices.Equal(got, []string{"TestA/runc"}) {
			t.Errorf("%q", got)
		}
	})
}

func TestTheSuitesTimeIsUp(t *testing.T) {
	for timeout, want := range map[time.Duration]string{40 * time.Minute: "38m30s", time.Minute: "45s"} {
		synctest.Test(t, func(t *testing.T) {
			s := newSuite()
			for i := range 1000 {
				story := &told{name: fmt.Sprint("Test", i), deadline: s.began.Add(timeout)}
				s.Watch(story)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				story.end()
			}
			synctest.Wait()
			if len(s.notes) != 1 || !strings.HasPrefix(s.notes[0], want+" end: the time of go test -timeout is nearly up, in Test") {
				t.Errorf("%v: %q", timeout, s.notes)
			}
		})
	}
}
