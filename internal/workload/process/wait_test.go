package process

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// waited is what Wait has returned.
type waited struct {
	record Record
	inTime bool
	err    error
}

// wait calls Wait, and returns when it waits for something.
func (s *service) wait(ctx context.Context, id string, ready bool, most time.Duration) <-chan waited {
	s.t.Helper()
	timers := s.run.clock.planned()
	ended := make(chan waited, 1)
	go func() {
		r, inTime, err := s.Wait(ctx, "alice", id, ready, most)
		ended <- waited{r, inTime, err}
	}()
	want := timers + 1
	if ready {
		want++
	}
	waittest.Until(s.t, "it waits", func() bool { return s.run.clock.planned() >= want || len(ended) > 0 })
	return ended
}

// planned is how many timers there are.
func (c *fakeClock) planned() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}

func TestWaitForAnEnd(t *testing.T) {
	s := newHost(t).serve()
	r := s.start(Intent{})
	ended := s.wait(t.Context(), r.ID, false, time.Hour)
	for _, container := range s.run.of(r.ID) {
		s.run.end(container, Exit{Code: 3})
	}
	s.Ended(r.ID)
	got := <-ended
	says(t, got.record, "running/exited exit 3")
	if !got.inTime || got.err != nil {
		t.Errorf("in time %t, %v", got.inTime, got.err)
	}
	// It has ended already.
	if r, inTime, err := s.Wait(t.Context(), "alice", r.ID, false, time.Hour); r.Status != Exited || !inTime || err != nil {
		t.Errorf("%+v, %t, %v", r, inTime, err)
	}
}

// A process that is started again has not ended.
func TestWaitForOneThatComesBack(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r := s.start(Intent{KeepAlive: true})
	ended := s.wait(t.Context(), r.ID, false, time.Second)
	for _, container := range s.run.of(r.ID) {
		s.run.end(container, Exit{Code: 1})
	}
	s.Ended(r.ID)
	h.clock.advance(time.Second)
	if got := <-ended; got.inTime || got.err != nil || got.record.ID != r.ID {
		t.Errorf("%+v", got)
	}
}

func TestWaitForReadiness(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r := s.start(Intent{Ready: &Ready{Port: 80}})
	ended := s.wait(t.Context(), r.ID, true, time.Hour)
	s.run.setReady()
	h.clock.advance(readyPoll)
	if got := <-ended; !got.inTime || got.err != nil || !got.record.Readiness.OK {
		t.Errorf("%+v", got)
	}
	if _, _, err := s.Wait(t.Context(), "alice", s.start(Intent{}).ID, true, time.Hour); !errdefs.IsInvalidArgument(err) {
		t.Errorf("without a check: %v", err)
	}
}

func TestWaitEndsWithItsCaller(t *testing.T) {
	s := newHost(t).serve()
	r := s.start(Intent{})
	gone := errors.New("gone")
	ctx, leave := context.WithCancelCause(t.Context())
	ended := s.wait(ctx, r.ID, false, time.Hour)
	leave(gone)
	if got := <-ended; !errors.Is(got.err, gone) {
		t.Errorf("%+v", got)
	}
	ended = s.wait(t.Context(), r.ID, false, time.Hour)
	if err := s.Remove(t.Context(), "alice", r.ID); err != nil {
		t.Fatal(err)
	}
	// What is known first counts: that it ended, or that it is gone.
	if got := <-ended; got.err != nil && !errdefs.IsNotFound(got.err) {
		t.Errorf("%+v", got)
	}
	if _, _, err := s.Wait(t.Context(), "bob", s.start(Intent{}).ID, false, time.Hour); !errdefs.IsNotFound(err) {
		t.Errorf("another user's: %v", err)
	}
	ended = s.wait(t.Context(), s.start(Intent{}).ID, false, time.Hour)
	s.shutdown()
	if got := <-ended; !errdefs.IsUnavailable(got.err) {
		t.Errorf("the service ends: %+v", got)
	}
}

// Where a user has as many processes as may be, the one that ended first makes room, with its log: never one that runs or comes
// back, and never another user's.
func TestEndedProcessesMakeRoom(t *testing.T) {
	h := newHost(t)
	s := h.serve(func(c *Config) {
		c.Quotas = quota.New(quota.Limits{PerUser: quota.Bounds{Processes: 4}, Total: quota.Bounds{Processes: 5}})
	})
	bobs := s.start(Intent{UserID: "bob"})
	if _, err := s.Stop(t.Context(), "bob", bobs.ID, 15); err != nil {
		t.Fatal(err)
	}
	runs, first, second := s.start(Intent{}), s.start(Intent{}), s.start(Intent{})
	comesBack := s.start(Intent{KeepAlive: true})
	s.exits(comesBack.ID, Exit{Code: 1})
	h.clock.advance(time.Millisecond)
	s.exits(second.ID, Exit{})
	h.clock.advance(time.Millisecond)
	s.exits(first.ID, Exit{})
	gone := func(id string) bool { _, err := s.Get("alice", id); return errdefs.IsNotFound(err) }
	s.start(Intent{})
	if !gone(second.ID) || gone(first.ID) {
		t.Error("it is not the one that ended first that is gone")
	}
	s.start(Intent{})
	if !gone(first.ID) || gone(runs.ID) || gone(comesBack.ID) {
		t.Error("another one is gone")
	}
	if _, _, err := s.Start(t.Context(), Intent{UserID: "alice", Command: "x"}, quota.Token{}, nil, nil); !errdefs.IsResourceExhausted(err) {
		t.Errorf("without one that has ended: %v", err)
	}
	if _, err := s.Get("bob", bobs.ID); err != nil {
		t.Errorf("another user's: %v", err)
	}
}

// A name means one process that has not ended.
func TestOneNameOneProcess(t *testing.T) {
	s := newHost(t).serve()
	start := func(user, name string) error {
		_, _, err := s.Start(t.Context(), Intent{UserID: user, Name: name, Command: "x"}, quota.Token{}, nil, nil)
		return err
	}
	web := s.start(Intent{Name: "web"})
	if err := start("alice", "web"); !errdefs.IsConflict(err) || err.Error() != `cannot start the process: process `+web.ID+` has the name "web" and has not ended; stop it, or give another name` {
		t.Errorf("%v", err)
	}
	if err := errors.Join(start("bob", "web"), start("alice", "other"), start("alice", ""), start("alice", "")); err != nil {
		t.Error(err)
	}
	s.exits(web.ID, Exit{})
	if err := start("alice", "web"); err != nil {
		t.Errorf("after its end: %v", err)
	}
}

// A start that a name forbids removes nothing.
func TestANameThatIsTakenMakesNoRoom(t *testing.T) {
	s := newHost(t).serve(func(c *Config) {
		c.Quotas = quota.New(quota.Limits{PerUser: quota.Bounds{Processes: 2}})
	})
	s.start(Intent{Name: "web"})
	ended := s.start(Intent{})
	s.exits(ended.ID, Exit{})
	if _, _, err := s.Start(t.Context(), Intent{UserID: "alice", Name: "web", Command: "x"}, quota.Token{}, nil, nil); !errdefs.IsConflict(err) {
		t.Errorf("%v", err)
	}
	if _, err := s.Get("alice", ended.ID); err != nil {
		t.Errorf("what has ended has gone: %v", err)
	}
}
