package persistent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

const outOf128Mi = "out of memory: this container may use 128Mi (limits.memory), its tmpfs included"

// A command whose container runs out of memory was killed, and its sandbox goes on from the home, also after a restart of the
// service.
func TestASandboxThatRunsOutOfMemory(t *testing.T) {
	for name, again := range map[string]bool{
		"at once": false, "before Docker notices": false,
		"for the next service": true, "for the next service, which finds no container": true,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.unnoticed = name == "before Docker notices"
			s := l.unstarted() // or it might give the container up before the command is followed
			b := l.create(s, Create{Template: Template{Name: "base", Env: map[string]string{"A": "b"}}})
			home := filepath.Join(l.dir, "users", b.ID(), "home")
			if err := os.WriteFile(filepath.Join(home, "kept"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			container := "c-" + b.ID()
			l.answer = func(stream *yamux.Stream, _ control.Request) {
				_ = wire.WriteMessage(stream, wire.KindAnswer, control.Answer{PID: 7})
				l.exhaust(container)
			}
			r, err := b.Start(t.Context(), Command{Argv: []string{"true"}})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			e, err := r.Next(t.Context())
			if err != nil || e.End == nil || e.End.Signal != syscall.SIGKILL || e.End.Exhausted == nil || e.End.Exhausted.Error() != outOf128Mi {
				t.Fatalf("%+v, %v", e.End, err)
			}
			if strings.HasSuffix(name, "no container") { // who looks has it removed
				_, err := s.Find(alice, b.ID())
				if left, _ := l.Persistent(t.Context()); err != nil || len(left) != 0 {
					t.Fatalf("%v, left: %v", err, left)
				}
			}
			if again {
				s.Shutdown()
				s = l.open()
			}
			if b, err = s.Find(alice, b.ID()); err != nil || b.Info().State != StateRunning || b.Info().Moved != nil {
				t.Fatalf("%+v, %v", b, err)
			}
			if err := b.Connect(t.Context(), b.Info().Deadline); err != nil {
				t.Fatal(err)
			}
			i := b.Info()
			if !l.PersistentRuns(container+"-again") || l.PersistentRuns(container) || i.State != StateRunning || i.Moved == nil || i.Moved.Why != outOf128Mi {
				t.Errorf("%+v", i)
			}
			if _, err := os.Stat(filepath.Join(home, "kept")); err != nil {
				t.Error(err)
			}
		})
	}
}

// One that runs out of memory while nothing can be recorded has not ended: it starts again once that can be recorded, whichever
// service is there by then, and nothing is left of it if it is killed before.
func TestASandboxThatRunsOutOfMemoryOnAFullDisk(t *testing.T) {
	for name, next := range map[string]func(*lab, *Sandboxes) *Sandboxes{
		"the service goes on": func(_ *lab, s *Sandboxes) *Sandboxes { return s },
		"the service starts again": func(l *lab, s *Sandboxes) *Sandboxes {
			s.Shutdown()
			return l.open()
		},
		"it is killed": nil,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			s := l.open()
			b := l.create(s, Create{AutoResume: true})
			container := "c-" + b.ID()
			aside := l.records() + ".aside"
			if err := errors.Join(os.Rename(l.records(), aside), os.WriteFile(l.records(), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			l.exhaust(container)
			b, err := s.Find(alice, b.ID())
			if err != nil || b.Info().State != StateRunning {
				t.Fatalf("%+v, %v", b.Info(), err)
			}
			if err := b.Connect(t.Context(), b.Info().Deadline); err == nil || !strings.Contains(err.Error(), "cannot record") {
				t.Errorf("%v", err)
			}
			if next == nil {
				_ = b.Kill(t.Context()) // the record stays
				if left, err := l.Persistent(t.Context()); err != nil || len(left) != 0 {
					t.Errorf("left: %v, %v", left, err)
				}
				return
			}
			if err := errors.Join(os.Remove(l.records()), os.Rename(aside, l.records())); err != nil {
				t.Fatal(err)
			}
			s = next(l, s)
			if b, err = s.Find(alice, b.ID()); err != nil {
				t.Fatal(err)
			}
			err = b.Connect(t.Context(), b.Info().Deadline)
			if i := b.Info(); err != nil || i.State != StateRunning || i.Moved == nil || i.Moved.Why != outOf128Mi {
				t.Errorf("%+v, %v", i, err)
			}
			if left, err := l.Persistent(t.Context()); err != nil || len(left) != 1 || left[0].ID != container+"-again" {
				t.Errorf("%v, %v", left, err)
			}
		})
	}
}

// A command whose container runs out of memory while it begins to be followed has its reason, too, though the sandbox has
// another container by then. Whether a command of an older agent has a terminal is asked for, which starts the sandbox again.
func TestASandboxThatRunsOutOfMemoryWhenFollowed(t *testing.T) {
	l := newLab(t)
	l.unnoticed = true
	b := l.create(l.open(), Create{})
	container := "c-" + b.ID()
	l.answer = func(stream *yamux.Stream, r control.Request) {
		if r.Do != control.Follow {
			return
		}
		l.exhaust(container)
		_ = wire.WriteMessage(stream, wire.KindAnswer, control.Answer{PID: 7})
	}
	r, err := b.Follow(t.Context(), Selector{PID: 7})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if !l.PersistentRuns(container + "-again") {
		t.Error("the sandbox has not started again")
	}
	if e, err := r.Next(t.Context()); err != nil || e.End == nil || e.End.Exhausted == nil {
		t.Errorf("%+v, %v", e.End, err)
	}
}

// A sandbox that runs out of memory again while it is made ready holds up nobody: its call is told, and the next one tries again.
func TestASandboxThatRunsOutOfMemoryAgain(t *testing.T) {
	l := newLab(t)
	l.unnoticed = true
	s := l.open()
	runs := func(stream *yamux.Stream, _ control.Request) {
		_ = wire.WriteMessage(stream, wire.KindAnswer, control.Answer{PID: 7})
		_ = wire.WriteMessage(stream, wire.KindExit, wire.Exit{})
	}
	l.answer = runs
	b := l.create(s, Create{Template: Template{Name: "base", Start: "serve", Ready: "true"}})
	l.exhaust("c-" + b.ID())
	l.answer = func(stream *yamux.Stream, r control.Request) { // to the start command
		l.exhaust("c-" + b.ID() + "-again")
		runs(stream, r)
	}
	call := func() error {
		done := make(chan error, 1)
		go func() {
			r, err := b.Start(t.Context(), Command{Argv: []string{"true"}})
			if err == nil {
				r.Close()
			}
			done <- err
		}()
		select {
		case err := <-done:
			return err
		case <-time.After(time.Minute):
			t.Fatal("a call does not come back")
			return nil
		}
	}
	if err := call(); !cerrdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), outOf128Mi) {
		t.Errorf("%v", err)
	}
	l.answer = runs
	b, err := s.Find(alice, b.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := call(); err != nil || b.Info().State != StateRunning {
		t.Errorf("%+v, %v", b.Info(), err)
	}
}

// What has no container is started for nobody who has gone, and is measured all the same.
func TestASandboxThatHasNoContainer(t *testing.T) {
	l := newLab(t)
	s := l.open()
	b := l.create(s, Create{Template: Template{Name: "base"}})
	l.exhaust("c-" + b.ID())
	b, err := s.Find(alice, b.ID())
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Start(gone, Command{Argv: []string{"true"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := b.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m, err := b.Metrics(t.Context()); err != nil || m.Memory != 0 || m.MemoryLimit != b.Info().Memory || m.At.IsZero() {
		t.Errorf("%+v, %v", m, err)
	}
	if left, err := l.Persistent(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// One that is lost in another way has ended.
func TestASandboxThatIsLost(t *testing.T) {
	l := newLab(t)
	b := l.create(l.unstarted(), Create{}) // or it might be removed before the call
	l.lose("c-" + b.ID())
	if err := b.Connect(t.Context(), b.Info().Deadline); !cerrdefs.IsUnavailable(err) || strings.Contains(err.Error(), "memory") {
		t.Errorf("%v", err)
	}
}

// A program that is killed for memory in a container that goes on has its reason, too.
func TestAKilledCommand(t *testing.T) {
	l := newLabOf(t)
	b := l.create(l.s, Create{})
	l.killed = &dockerexec.Exhausted{Limit: dockerexec.LimitMemory, Value: 128 << 20}
	for want, exit := range map[bool]wire.Exit{true: {Code: 137}, false: {Code: 1}} {
		l.answer = func(stream *yamux.Stream, _ control.Request) {
			_ = wire.WriteMessage(stream, wire.KindAnswer, control.Answer{PID: 7})
			_ = wire.WriteMessage(stream, wire.KindExit, exit)
		}
		r, err := b.Start(t.Context(), Command{Argv: []string{"true"}})
		if err != nil {
			t.Fatal(err)
		}
		e, err := r.Next(t.Context())
		if err != nil || e.End == nil || (e.End.Exhausted != nil) != want {
			t.Errorf("%+v: %+v, %v", exit, e.End, err)
		}
		r.Close()
	}
}
