package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/vault"
)

func TestKeepAliveWaitsLongerEachTimeUntilItIsStable(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r := s.start(Intent{KeepAlive: true})
	restarts := 0
	crash := func(after, wait time.Duration) {
		t.Helper()
		s.pass(after)
		r = s.exits(r.ID, Exit{Code: 1})
		if got := r.NextRestartAt.Sub(h.clock.Now()); got != wait || r.BackoffMs != wait.Milliseconds() || r.Finished() {
			t.Fatalf("after %d restarts it waits %v, backoffMs %d", restarts, got, r.BackoffMs)
		}
		if s.pass(wait - 1); len(h.of(r.ID)) > 0 {
			t.Fatal("it was started too early")
		}
		s.pass(1)
		restarts++
		r = s.get(r.ID)
		says(t, r, fmt.Sprintf("running/running exit 1, restarts %d, pid", restarts))
	}
	for _, seconds := range []int{2, 4, 8, 16, 32, 60, 60, 60} {
		crash(stableAfter-time.Second, time.Duration(seconds)*time.Second)
	}
	crash(stableAfter+time.Second, 2*time.Second)
	crash(0, 4*time.Second)
	crash(24*time.Hour, 2*time.Second)
	if len(h.of(r.ID)) != 1 || h.count() != 1 {
		t.Errorf("%d containers are left", h.count())
	}
}

func TestAStartThatFailsLaterIsTriedAgain(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r := s.exits(s.start(Intent{KeepAlive: true}).ID, Exit{Code: 1})
	s.run.onStart = func(Record) error { return errTest }
	s.pass(2 * time.Second)
	says(t, s.get(r.ID), "running/exited exit 1, restarts 1, waits 4000ms, it cannot be started again: the engine is away")
	s.pass(4 * time.Second)
	says(t, s.get(r.ID), "running/exited exit 1, restarts 2, waits 8000ms, it cannot be started again: the engine is away")
	s.run.onStart = nil
	s.pass(8 * time.Second)
	says(t, s.get(r.ID), "running/running exit 1, restarts 3, pid")
}

// One user's restarts, however many and slow they are, leave a place for another's.
func TestSlowRestartsLeaveAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const processes = 12
		h := newHost(t)
		s := h.serve()
		ends := func(user string) {
			r := s.start(Intent{UserID: user, KeepAlive: true})
			h.end(r.Instance.Container, Exit{Code: 1})
			s.Ended(r.ID)
			s.settle()
		}
		for range processes {
			ends("alice")
		}
		h.clock.advance(time.Second)
		ends("bob")
		begun, let, bobs := make(chan string, processes), make(chan struct{}), make(chan struct{})
		s.run.onStart = func(r Record) error {
			if r.UserID == "bob" {
				close(bobs)
				return nil
			}
			begun <- r.ID
			<-let
			return nil
		}
		h.clock.advance(time.Second)
		for range restartsOfUser {
			<-begun
		}
		if synctest.Wait(); len(begun) > 0 {
			t.Errorf("%d are started beside as many others of the user's", len(begun))
		}
		h.clock.advance(time.Second)
		<-bobs // another user's is started
		close(let)
		s.settle()
		if n := h.count(); n != processes+1 {
			t.Errorf("%d run", n)
		}
	})
}

func TestAContainerThatCannotBeRemovedIsRemovedBeforeTheNextStart(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r := s.start(Intent{KeepAlive: true})
	s.run.onRemove = func(Instance) error { return errTest }
	s.exits(r.ID, Exit{Code: 1})
	s.pass(2 * time.Second)
	says(t, s.get(r.ID), "running/exited exit 1, restarts 1, waits 4000ms, it cannot be started again: an earlier container of the process cannot be removed")
	s.run.onRemove = nil
	s.pass(4 * time.Second)
	says(t, s.get(r.ID), "running/running exit 1, restarts 2, pid")
}

func TestStopEndsTheWait(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r := s.exits(s.start(Intent{KeepAlive: true}).ID, Exit{Code: 1})
	r, err := s.Stop(t.Context(), "alice", r.ID, syscall.SIGTERM)
	if err != nil {
		t.Fatal(err)
	}
	says(t, r, "stopped/stopped exit 1")
	if s.pass(time.Hour); h.done() != "start" {
		t.Errorf("there was %s", h.done())
	}
}

func TestATimerThatFiredLosesAgainstAStop(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r := s.exits(s.start(Intent{KeepAlive: true}).ID, Exit{Code: 1})
	p := s.processes[r.ID]
	if err := p.take(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.clock.advance(time.Hour) // the timer waits for the turn now
	if err := p.halt(t.Context(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.give()
	says(t, s.get(r.ID), "stopped/stopped exit 1")
	if h.done() != "start" {
		t.Errorf("there was %s", h.done())
	}
}

func TestSecretsOutliveTheServiceAndAreNowhereInClear(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	const secret = "hunter2-hunter2"
	r := s.start(Intent{KeepAlive: true}, map[string]string{"TOKEN": secret})
	s.start(Intent{}, map[string]string{"TOKEN": secret})
	nowhere := func() {
		t.Helper()
		err := filepath.WalkDir(h.root, func(name string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			text, err := os.ReadFile(name)
			if strings.Contains(string(text), secret) {
				t.Errorf("%s has it", name)
			}
			if info, _ := entry.Info(); info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v", name, info.Mode())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	nowhere()
	s.shutdown()
	s = h.serve()
	s.exits(r.ID, Exit{Code: 1})
	s.pass(2 * time.Second)
	if got := h.secrets[len(h.secrets)-1]; len(h.secrets) != 3 || got["TOKEN"] != secret {
		t.Errorf("it was started with %v", h.secrets)
	}
	nowhere()
	if _, err := s.Stop(t.Context(), "alice", r.ID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(h.dir(), "*", "secrets")); len(left) > 0 {
		t.Errorf("secrets that nobody needs are left: %v", left)
	}
}

func TestWithoutItsSecretsAProcessIsNotStarted(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(dir, id string) error
		says  string
	}{
		"no key":      {func(dir, _ string) error { return os.Remove(filepath.Join(dir, "key")) }, "their key is gone"},
		"another key": {func(dir, _ string) error { return os.WriteFile(filepath.Join(dir, "key"), make([]byte, 32), 0o600) }, "sealed with another key"},
		"cut key":     {func(dir, _ string) error { return os.Truncate(filepath.Join(dir, "key"), 31) }, "has 31 bytes"},
		"no secrets":  {func(dir, id string) error { return os.Remove(filepath.Join(dir, id, "secrets")) }, "its secrets are gone"},
		"cut secrets": {func(dir, id string) error { return os.Truncate(filepath.Join(dir, id, "secrets"), 5) }, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			s := h.serve()
			r := s.start(Intent{KeepAlive: true}, map[string]string{"TOKEN": "x"})
			if err := test.spoil(h.dir(), r.ID); err != nil {
				t.Fatal(err)
			}
			s.exits(r.ID, Exit{})
			s.pass(2 * time.Second)
			if r = s.get(r.ID); r.Status != Exited || !strings.Contains(r.Reason, test.says) || r.NextRestartAt.IsZero() {
				t.Errorf("it is %s because %q", r.Status, r.Reason)
			}
		})
	}
}

func TestSecretsAreOfOneProcess(t *testing.T) {
	v := vault.New(filepath.Join(t.TempDir(), "key"))
	sealed, err := sealSecrets(v, "p-a", map[string]string{"A": "b"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := openSecrets(v, "p-a", sealed); err != nil || got["A"] != "b" {
		t.Errorf("opened %v, %v", got, err)
	}
	if got, err := openSecrets(v, "p-b", sealed); err == nil {
		t.Errorf("another process opened %v", got)
	}
}

// Secrets and their key, cut at any byte, open nothing, seal nothing, and say why.
func TestSecretsThatWereCut(t *testing.T) {
	keyFile := filepath.Join(t.TempDir(), "key")
	v := vault.New(keyFile)
	sealed, err := sealSecrets(v, "p-a", map[string]string{"A": "b"})
	if err != nil {
		t.Fatal(err)
	}
	for length := range sealed {
		if got, err := openSecrets(v, "p-a", sealed[:length]); err == nil || !strings.Contains(err.Error(), "they are damaged") {
			t.Errorf("cut to %d bytes: %v, %v", length, got, err)
		}
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	for length := range key {
		if err := os.WriteFile(keyFile, key[:length], 0o600); err != nil {
			t.Fatal(err)
		}
		_, sealErr := sealSecrets(v, "p-a", map[string]string{"A": "b"})
		_, openErr := openSecrets(v, "p-a", sealed)
		for _, err := range []error{sealErr, openErr} {
			if err == nil || !strings.Contains(err.Error(), "it is damaged") {
				t.Errorf("key cut to %d bytes: %v", length, err)
			}
		}
	}
}

// Why the service has ended a process stays known once it runs again, and so does what its start had to do; an end by
// itself has no reason.
func TestExitReasonsAreKept(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	p := s.start(Intent{KeepAlive: true})
	for i, reason := range []string{"its view changed", ""} {
		ended := s.exits(p.ID, Exit{Signal: unix.SIGKILL, Reason: reason})
		if ended.Reason != reason || ended.ExitReason != reason || ended.Signal != "SIGKILL" || ended.Status != Exited {
			t.Errorf("end %d: %+v", i, ended)
		}
		s.run.notice = "made anew"
		s.pass(time.Minute)
		again := s.get(p.ID)
		if again.Status != Running || again.Reason != "" || again.ExitReason != reason || again.Notice != "made anew" {
			t.Errorf("start %d: %+v", i, again)
		}
		s.shutdown()
		s = h.serve()
		if next := s.get(p.ID); next.ExitReason != reason || next.Notice != "made anew" {
			t.Errorf("the next service: %+v", next)
		}
	}
}
