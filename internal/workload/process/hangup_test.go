package process

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
)

// A process that does not mind its signal is stopped again and again by callers who hang up: one of them is remembered.
func TestCallersWhoHangUpLeaveOneStop(t *testing.T) {
	s := newHost(t).serve()
	r := s.start(Intent{})
	const callers = 10
	var inside, calls atomic.Int32
	entered, goOn := make(chan struct{}, 10*callers), make(chan struct{})
	s.run.onStop = func(ctx context.Context, _ Instance, _ syscall.Signal) error {
		calls.Add(1)
		inside.Add(1)
		defer inside.Add(-1)
		entered <- struct{}{}
		select {
		case <-goOn:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	stop := func(ctx context.Context) error {
		_, err := s.Stop(ctx, "alice", r.ID, syscall.SIGTERM)
		return err
	}
	stopAll := func(ctx context.Context) error { _, err := s.StopAll(ctx, "alice"); return err }
	stays := make(chan error, 1)
	go func() { stays <- stop(t.Context()) }()
	<-entered
	for range callers {
		for _, f := range []func(context.Context) error{stop, stopAll} {
			ctx, hangUp := context.WithCancel(t.Context())
			left := make(chan error, 1)
			go func() { left <- f(ctx) }()
			<-entered // its signal is sent at once
			hangUp()
			if err := <-left; !errors.Is(err, context.Canceled) {
				t.Errorf("who has hung up is told %v", err)
			}
			if err := f(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("who hangs up at once is told %v", err)
			}
		}
	}
	if n := inside.Load(); n != 1 {
		t.Errorf("%d stops are under way, of which one has a caller", n)
	}
	close(goOn)
	if err := <-stays; err != nil {
		t.Error(err)
	}
	says(t, s.get(r.ID), "stopped/stopped exit -, SIGTERM")
	if n := calls.Load(); n != 1+2*callers {
		t.Errorf("stopped %d times", n)
	}
}

// What waits for a process's turn is done once, whoever has asked for it and hung up.
func TestCallersWhoHangUpWaitOnce(t *testing.T) {
	s := newHost(t).serve()
	r := s.start(Intent{SandboxID: "one"})
	var stops, pauses atomic.Int32
	s.run.onStop = func(context.Context, Instance, syscall.Signal) error { stops.Add(1); return errTest }
	s.run.onPause = func(bool) { pauses.Add(1) }
	p, err := s.find("alice", r.ID)
	if err == nil {
		err = p.take(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	gone, hangUp := context.WithCancel(t.Context())
	hangUp()
	for range 10 {
		_, stopped := s.Stop(gone, "alice", r.ID, syscall.SIGTERM)
		for _, err := range []error{stopped, s.Remove(gone, "alice", r.ID), s.FollowPause(gone, "one")} {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("who has hung up is told %v", err)
			}
		}
	}
	p.give()
	s.settle()
	if stops.Load() != 2 || pauses.Load() != 1 {
		t.Errorf("stopped %d times, not for Stop and Remove, and its pause followed %d times", stops.Load(), pauses.Load())
	}
	// After what has failed the next caller tries again.
	s.run.onStop = nil
	if err := s.Remove(t.Context(), "alice", r.ID); err != nil {
		t.Error(err)
	}
}

// A pause that is under way has been decided, so whoever asks after a change does not join it.
func TestAPauseThatHasBegunIsNotJoined(t *testing.T) {
	var paused atomic.Bool
	s := newHost(t).serve(func(c *Config) { c.Sandboxes = pausedIf(func(string, string) bool { return paused.Load() }) })
	r := s.start(Intent{SandboxID: "one"})
	pausing, goOn := make(chan struct{}), make(chan struct{})
	s.run.onPause = func(paused bool) {
		if paused {
			close(pausing)
			<-goOn
		}
	}
	paused.Store(true)
	first := make(chan error, 1)
	go func() { first <- s.FollowPause(t.Context(), "one") }()
	<-pausing
	paused.Store(false)
	gone, hangUp := context.WithCancel(t.Context())
	hangUp()
	if err := s.FollowPause(gone, "one"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(goOn)
	if err := <-first; err != nil {
		t.Error(err)
	}
	s.settle()
	if s.run.paused[r.ID] {
		t.Error("it is paused, although its sandbox is not")
	}
}
