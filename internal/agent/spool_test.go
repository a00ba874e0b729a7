//go:build linux

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// watched is a spool with a first process that watches it.
type watched struct {
	t     *testing.T
	path  string
	begun chan os.Signal
	lost  chan error
}

func newWatched(t *testing.T) watched {
	w := watched{t, filepath.Join(t.TempDir(), "spool"), make(chan os.Signal, 1), make(chan error, 1)}
	if err := os.WriteFile(w.path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(w.path, wire.SpoolSize); err != nil {
		t.Fatal(err)
	}
	first := w.open()
	go func() {
		err := first.watch(w.begun)
		_ = first.file.Close() // as its end does
		w.lost <- err
	}()
	return w
}

func (w watched) open() *spool {
	w.t.Helper()
	s, err := openSpool(w.path)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = s.file.Close() }) // it may be closed already
	return s
}

// tell is a signal to the first process, of which one is kept.
func (w watched) tell() error {
	select {
	case w.begun <- unix.SIGUSR1:
	default:
	}
	return nil
}

func (w watched) begin() *spool {
	w.t.Helper()
	s := w.open()
	if err := s.begin(w.tell); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// An agent that has ended all commands makes room for the next one.
func TestAgentsThatEndTheirCommands(t *testing.T) {
	w := newWatched(t)
	for range 10 {
		s := w.begin()
		if err := s.end(); err != nil {
			t.Fatal(err)
		}
		_ = s.file.Close() // as the kernel does
	}
	close(w.begun)
	if err := <-w.lost; err != nil {
		t.Error(err)
	}
}

// The first process notices an agent that has ended before its commands, and no other agent begins after it.
func TestAnAgentThatLeavesCommands(t *testing.T) {
	w := newWatched(t)
	s := w.begin()
	next := make(chan error, 1)
	waiting := w.open()
	go func() { next <- waiting.begin(w.tell) }()
	var at unix.Stat_t
	if err := unix.Stat(w.path, &at); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the first process and the next agent wait for the lock", func() bool {
		locks, err := os.ReadFile("/proc/locks")
		waiting := regexp.MustCompile(fmt.Sprintf(`-> FLOCK .*:%d `, at.Ino)).FindAll(locks, -1)
		return err == nil && len(waiting) == 2 || len(next)+len(w.lost) > 0
	})
	select {
	case err := <-next:
		t.Fatalf("two agents at a time: %v", err)
	case err := <-w.lost:
		t.Fatalf("it is given up while it lives: %v", err)
	default:
	}
	_ = s.file.Close()
	var lost error
	for range 2 {
		select {
		case lost = <-w.lost:
		case err := <-next:
			if err == nil {
				t.Fatal("the next agent has begun")
			}
			_ = waiting.file.Close()
		}
	}
	if lost == nil || !strings.Contains(lost.Error(), "before its commands") {
		t.Errorf("the first process: %v", lost)
	}
}
