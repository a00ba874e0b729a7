package process

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/quota"
)

// host is a directory and a Docker in which services come and go.
type host struct {
	t     *testing.T
	root  string
	boot  string
	ports PortRange // that may be exposed
	*engine
}

func newHost(t *testing.T) *host {
	return &host{t: t, root: t.TempDir(), boot: "boot-1", engine: newEngine(t)}
}

func (h *host) dir() string { return filepath.Join(h.root, "processes") }

func (h *host) logDir(r Record) string { return filepath.Join(h.root, "logs", r.ID) }

// service is a Manager with its Runner.
type service struct {
	*Manager
	run *fakeRunner
	t   *testing.T
}

// open starts a service that has not looked at Docker.
func (h *host) open(change ...func(*Config)) *service {
	h.t.Helper()
	run := &fakeRunner{engine: h.engine, logDir: h.logDir}
	cfg := Config{Dir: h.dir(), Runner: run, Clock: h.clock, BootID: h.boot, Ports: NewListeners(h.ports, zerolog.Nop()), Log: zerolog.New(zerolog.NewTestWriter(h.t))}
	for _, f := range change {
		f(&cfg)
	}
	m, err := Open(cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	s := &service{m, run, h.t}
	h.t.Cleanup(s.shutdown)
	return s
}

// serve starts a service that is ready.
func (h *host) serve(change ...func(*Config)) *service {
	h.t.Helper()
	s := h.open(change...)
	s.reconcile()
	return s
}

func (s *service) reconcile() {
	s.Lost()
	s.settle()
}

// settle waits until the manager does nothing.
func (s *service) settle() { s.work.Wait() }

func (s *service) shutdown() {
	if err := s.Shutdown(context.Background()); err != nil {
		s.t.Error(err)
	}
	s.cfg.Ports.Shutdown()
}

func (s *service) start(n Intent, secrets ...map[string]string) Record {
	s.t.Helper()
	if n.UserID == "" {
		n.UserID = "alice"
	}
	if n.Command == "" {
		n.Command = "sleep inf"
	}
	r, _, err := s.Start(s.t.Context(), n, quota.Token{}, append(secrets, nil)[0], nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// get is alice's process.
func (s *service) get(id string) Record {
	s.t.Helper()
	s.settle()
	r, err := s.Get("alice", id)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// exits has the process end by itself and waits until that is known.
func (s *service) exits(id string, exit Exit) Record {
	s.t.Helper()
	for _, container := range s.run.of(id) {
		s.run.end(container, exit)
	}
	s.Ended(id)
	return s.get(id)
}

// pass lets time go by.
func (s *service) pass(d time.Duration) {
	s.run.clock.advance(d)
	s.settle()
}

var errTest = errors.New("the engine is away")

// says fails a test when a record, as text, is not what was wanted.
func says(t *testing.T, r Record, want string) {
	t.Helper()
	code := "-"
	if r.ExitCode != nil {
		code = fmt.Sprint(*r.ExitCode)
	}
	got := fmt.Sprintf("%s/%s exit %s", r.DesiredState, r.Status, code)
	for _, more := range []struct {
		is   bool
		text string
	}{
		{r.Signal != "", r.Signal}, {r.OOMKilled, "oom"},
		{r.RestartCount > 0, fmt.Sprintf("restarts %d", r.RestartCount)},
		{!r.NextRestartAt.IsZero(), fmt.Sprintf("waits %dms", r.BackoffMs)},
		{r.PID != 0, "pid"}, {r.Reason != "", r.Reason},
	} {
		if more.is {
			got += ", " + more.text
		}
	}
	if got != want {
		t.Errorf("the record says\n\t%s, not\n\t%s", got, want)
	}
}
