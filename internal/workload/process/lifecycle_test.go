package process

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/quota"
)

func TestAProcessFromStartToEnd(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r := s.start(Intent{Name: "server", SandboxID: "box", Cwd: "/home", Egress: Egress{Profile: "isolated", Domains: []string{"example.org"}}})
	says(t, r, "running/running exit -, pid")
	if !idPattern.MatchString(r.ID) || r.LogPath != filepath.Join(h.logDir(r), "process.log") || !r.CreatedAt.Equal(monday) {
		t.Errorf("it is %+v", r)
	}
	if applied, err := os.ReadFile(filepath.Join(h.dir(), r.ID, "sandbox.json")); string(applied) != `{"made":"c1"}` {
		t.Errorf("sandbox.json has %q, %v", applied, err)
	}
	h.clock.advance(time.Minute)
	r = s.exits(r.ID, Exit{Code: 3, Lost: 7})
	says(t, r, "running/exited exit 3")
	if r.LostBytes != 7 || !r.LastExitedAt.Equal(monday.Add(time.Minute)) || !r.Finished() {
		t.Errorf("it ended as %+v", r)
	}
	if h.count() != 0 {
		t.Error("its container is still there")
	}
	// It has ended by itself, and there is nothing to stop.
	r, err := s.Stop(t.Context(), "alice", r.ID, syscall.SIGTERM)
	if err != nil {
		t.Fatal(err)
	}
	says(t, r, "running/exited exit 3")
	if err := s.Remove(t.Context(), "alice", r.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(h.dir(), r.ID)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its state is still there: %v", err)
	}
	if _, err := s.Get("alice", r.ID); !errdefs.IsNotFound(err) {
		t.Errorf("it is still found: %v", err)
	}
}

func TestEndsAreToldApart(t *testing.T) {
	for name, test := range map[string]struct {
		exit Exit
		want string
	}{
		"zero":   {Exit{}, "running/exited exit 0"},
		"code":   {Exit{Code: 143}, "running/exited exit 143"},
		"signal": {Exit{Signal: syscall.SIGSEGV}, "running/exited exit -, SIGSEGV"},
		"oom":    {Exit{Signal: syscall.SIGKILL, OOM: true}, "running/exited exit -, SIGKILL, oom"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newHost(t).serve()
			says(t, s.exits(s.start(Intent{}).ID, test.exit), test.want)
		})
	}
}

func TestStopSendsWhatItIsTold(t *testing.T) {
	for signal, want := range map[syscall.Signal]string{
		syscall.SIGTERM: "SIGTERM", syscall.SIGINT: "SIGINT", syscall.SIGHUP: "SIGHUP", syscall.SIGKILL: "SIGKILL",
	} {
		h := newHost(t)
		s := h.serve()
		r := s.start(Intent{KeepAlive: true})
		s.run.onStop = func(context.Context, Instance, syscall.Signal) error {
			// That it ought to be stopped is on disk before anything is sent.
			on, err := s.store.(store).read(r.ID)
			if err != nil || on.DesiredState != Stopped {
				t.Errorf("signalled while the record said %s, %v", on.DesiredState, err)
			}
			return nil
		}
		r, err := s.Stop(t.Context(), "alice", r.ID, signal)
		if err != nil {
			t.Fatal(err)
		}
		says(t, r, "stopped/stopped exit -, "+want)
		if s.pass(time.Hour); len(h.clock.waiting()) > 0 || h.count() > 0 {
			t.Error("it comes back")
		}
	}
}

func TestAStartThatFailsLeavesNothing(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	s.run.onStart = func(r Record) error {
		if on, err := s.store.(store).read(r.ID); err != nil || on.DesiredState != Running {
			t.Errorf("started before it was recorded: %+v, %v", on, err)
		}
		return errTest
	}
	if _, _, err := s.Start(t.Context(), Intent{UserID: "alice", Command: "x", KeepAlive: true}, quota.Token{}, nil, nil); !errors.Is(err, errTest) {
		t.Errorf("start: %v", err)
	}
	entries, err := os.ReadDir(h.dir())
	if err != nil || len(entries) != 0 || len(s.List("alice")) != 0 {
		t.Errorf("left %v, %v, %v", entries, s.List("alice"), err)
	}
}

func TestStopAllIsOfOneUser(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	first, _, bobs := s.start(Intent{}), s.exits(s.start(Intent{}).ID, Exit{}), s.start(Intent{UserID: "bob"})
	h.clock.advance(time.Second)
	waits := s.exits(s.start(Intent{KeepAlive: true}).ID, Exit{})
	stopped, err := s.StopAll(t.Context(), "alice")
	if err != nil {
		t.Fatal(err)
	}
	if len(stopped) != 2 || stopped[0].ID != first.ID || stopped[1].ID != waits.ID {
		t.Errorf("stopped %+v", stopped)
	}
	says(t, s.get(first.ID), "stopped/stopped exit -, SIGTERM")
	says(t, s.get(waits.ID), "stopped/stopped exit 0")
	if len(h.of(bobs.ID)) != 1 {
		t.Error("bob's was stopped, too")
	}
}

func TestRemoveStopsFirst(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r := s.start(Intent{KeepAlive: true}, map[string]string{"TOKEN": "x"})
	if err := os.MkdirAll(h.logDir(r), 0o700); err != nil {
		t.Fatal(err)
	}
	s.run.onRemove = func(Instance) error { return errTest }
	if err := s.Remove(t.Context(), "alice", r.ID); err == nil {
		t.Error("removed, although the container is there")
	}
	says(t, s.get(r.ID), "stopped/stopped exit -, SIGTERM")
	s.run.onRemove = nil
	if err := s.Remove(t.Context(), "alice", r.ID); err != nil {
		t.Fatal(err)
	}
	left, _ := filepath.Glob(filepath.Join(h.root, "*", "p-*"))
	if h.count() != 0 || len(left) != 0 {
		t.Errorf("left %d containers and %v", h.count(), left)
	}
}

func TestAStopThatFailsIsToldAndTriedAgain(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r := s.start(Intent{KeepAlive: true})
	s.run.onStop = func(context.Context, Instance, syscall.Signal) error { return errTest }
	if _, err := s.Stop(t.Context(), "alice", r.ID, syscall.SIGTERM); !errors.Is(err, errTest) {
		t.Errorf("stop: %v", err)
	}
	says(t, s.get(r.ID), "stopped/running exit -, pid")
	s.run.onStop = nil
	s.reconcile()
	says(t, s.get(r.ID), "stopped/stopped exit -, SIGTERM")
}

func TestASecondSignalDoesNotWaitForTheGraceOfTheFirst(t *testing.T) {
	s := newHost(t).serve()
	r := s.start(Intent{})
	graceful, killed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.run.onStop = func(_ context.Context, i Instance, signal syscall.Signal) error {
		if signal == syscall.SIGTERM {
			close(graceful)
			<-killed // it does not mind
			return nil
		}
		s.run.end(i.Container, Exit{Signal: signal})
		once.Do(func() { close(killed) })
		return nil
	}
	first := make(chan error)
	go func() { _, err := s.Stop(t.Context(), "alice", r.ID, syscall.SIGTERM); first <- err }()
	<-graceful
	if _, err := s.Stop(t.Context(), "alice", r.ID, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
	says(t, s.get(r.ID), "stopped/stopped exit -, SIGKILL")
}

func TestACallerWhoHangsUpDoesNotEndAStop(t *testing.T) {
	s := newHost(t).serve()
	r := s.start(Intent{})
	ctx, hangUp := context.WithCancel(t.Context())
	s.run.onStop = func(inside context.Context, _ Instance, _ syscall.Signal) error {
		hangUp()
		return context.Cause(inside)
	}
	if _, err := s.Stop(ctx, "alice", r.ID, syscall.SIGTERM); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("stop: %v", err)
	}
	says(t, s.get(r.ID), "stopped/stopped exit -, SIGTERM")
}

func TestListIsByCreation(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	var want, got []string
	for range 5 {
		want = append(want, s.start(Intent{}).ID)
		h.clock.advance(time.Second)
	}
	for _, r := range s.List("alice") {
		got = append(got, r.ID)
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("listed %v, not %v", got, want)
	}
}

func TestShutdownLeavesProcessesAlone(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r := s.start(Intent{KeepAlive: true})
	waits := s.exits(s.start(Intent{KeepAlive: true}).ID, Exit{})
	s.shutdown()
	if len(h.of(r.ID)) != 1 || len(h.clock.waiting()) != 0 {
		t.Errorf("running %v, timers %v", h.of(r.ID), h.clock.waiting())
	}
	s.Ended(waits.ID)
	s.Lost()
	if _, _, err := s.Start(t.Context(), Intent{UserID: "alice", Command: "x"}, quota.Token{}, nil, nil); !errdefs.IsUnavailable(err) {
		t.Errorf("start: %v", err)
	}
	if _, err := s.Stop(t.Context(), "alice", r.ID, syscall.SIGTERM); !errdefs.IsUnavailable(err) {
		t.Errorf("stop: %v", err)
	}
}

func TestProcessesDoNotWaitForEachOther(t *testing.T) {
	s := newHost(t).serve()
	slow, other := s.start(Intent{}), s.start(Intent{})
	stopping, goOn := make(chan struct{}), make(chan struct{})
	s.run.onStop = func(_ context.Context, i Instance, _ syscall.Signal) error {
		if i.Process == slow.ID {
			close(stopping)
			<-goOn
		}
		return nil
	}
	done := make(chan error)
	go func() { _, err := s.Stop(t.Context(), "alice", slow.ID, syscall.SIGTERM); done <- err }()
	<-stopping
	if _, err := s.Stop(t.Context(), "alice", other.ID, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	s.start(Intent{})
	if r, err := s.Get("alice", slow.ID); err != nil || r.DesiredState != Stopped || r.Status != Running {
		t.Errorf("meanwhile the other is %+v, %v", r, err)
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
