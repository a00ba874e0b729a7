package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/quota"
)

var monday = time.Date(2026, 1, 5, 9, 0, 0, 0, time.UTC)

// fakeClock goes on when a test says so.
type fakeClock struct {
	mu     sync.Mutex
	time   time.Time
	timers []*fakeTimer
}

type fakeTimer struct {
	due time.Time
	f   func()
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.time
}

func (c *fakeClock) AfterFunc(d time.Duration, f func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	timer := &fakeTimer{c.time.Add(d), f}
	c.timers = append(c.timers, timer)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		before := len(c.timers)
		c.timers = slices.DeleteFunc(c.timers, func(other *fakeTimer) bool { return other == timer })
		return len(c.timers) < before
	}
}

// advance moves the time and fires what is due.
func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	c.time = c.time.Add(d)
	var due []*fakeTimer
	c.timers = slices.DeleteFunc(c.timers, func(timer *fakeTimer) bool {
		if timer.due.After(c.time) {
			return false
		}
		due = append(due, timer)
		return true
	})
	c.mu.Unlock()
	for _, timer := range due {
		timer.f()
	}
}

// waiting are the delays until timers that are still to fire.
func (c *fakeClock) waiting() []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []time.Duration
	for _, timer := range c.timers {
		all = append(all, timer.due.Sub(c.time))
	}
	return all
}

// engine is a fakeRunner's containers. They stay when a service ends.
type engine struct {
	clock *fakeClock

	mu        sync.Mutex
	made      int
	instances map[string]Instance // by container
	exits     map[string]Exit
	secrets   []map[string]string // of each start
	doings    []string            // start and signals, in their order
	t         testing.TB
}

func newEngine(t testing.TB) *engine {
	return &engine{t: t, clock: &fakeClock{time: monday}, instances: map[string]Instance{}, exits: map[string]Exit{}}
}

// fakeRunner runs processes in Docker. Fields that are set have a say.
type fakeRunner struct {
	*engine
	paused      map[string]bool // by process
	onStart     func(Record) error
	onStarted   func(Record) error
	onInstances func() error // after the list was made
	onStop      func(context.Context, Instance, syscall.Signal) error
	onRemove    func(Instance) error
	onExit      func(Instance) error
	onDial      func(Instance, int) (Conn, error)
	readiness   Readiness
}

func (f *fakeRunner) Pause(_ context.Context, i Instance) error { return f.setPaused(i, true) }

func (f *fakeRunner) Resume(_ context.Context, i Instance) error { return f.setPaused(i, false) }

func (f *fakeRunner) setPaused(i Instance, paused bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.paused == nil {
		f.paused = map[string]bool{}
	}
	f.paused[i.Process] = paused
	return nil
}

func (f *fakeRunner) Readiness(Record) Readiness { return f.readiness }

func (f *fakeRunner) Dial(_ context.Context, i Instance, port int) (Conn, error) {
	f.mu.Lock()
	onDial := f.onDial
	f.mu.Unlock()
	return onDial(i, port)
}

func (f *fakeRunner) Start(ctx context.Context, r Record, secrets map[string]string) (Instance, error) {
	if f.onStart != nil {
		if err := f.onStart(r); err != nil {
			return Instance{}, err
		}
	}
	if err := context.Cause(ctx); err != nil {
		return Instance{}, err
	}
	i, err := f.add(r, secrets)
	if err == nil && f.onStarted != nil {
		err = f.onStarted(r)
	}
	return i, err
}

func (e *engine) add(r Record, secrets map[string]string) (Instance, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, other := range e.instances {
		if other.Process == r.ID {
			return Instance{}, fmt.Errorf("the name daycare-process-%s is in use", r.ID)
		}
	}
	if r.DesiredState != Running {
		e.t.Errorf("%s was started, but ought to be %s", r.ID, r.DesiredState)
	}
	e.made++
	i := Instance{
		Process: r.ID, Container: fmt.Sprintf("c%d", e.made), Started: e.clock.Now().Add(time.Duration(e.made)),
		PID: 1000 + e.made, Running: true,
	}
	e.instances[i.Container] = i
	e.secrets = append(e.secrets, maps.Clone(secrets))
	e.doings = append(e.doings, "start")
	i.Applied = []byte(`{"made":"` + i.Container + `"}`)
	return i, nil
}

func (f *fakeRunner) Instances(context.Context) ([]Instance, error) {
	f.mu.Lock()
	all := slices.Collect(maps.Values(f.instances))
	f.mu.Unlock()
	if f.onInstances != nil {
		if err := f.onInstances(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (f *fakeRunner) Stop(ctx context.Context, i Instance, signal syscall.Signal, _ time.Duration) error {
	if f.onStop != nil {
		if err := f.onStop(ctx, i, signal); err != nil {
			return err
		}
	}
	f.mu.Lock()
	f.doings = append(f.doings, signal.String())
	f.mu.Unlock()
	f.end(i.Container, Exit{Signal: signal})
	return nil
}

func (f *fakeRunner) Remove(_ context.Context, i Instance) error {
	if f.onRemove != nil {
		if err := f.onRemove(i); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.instances, i.Container)
	return nil
}

func (f *fakeRunner) Exit(_ context.Context, i Instance) (Exit, error) {
	if f.onExit != nil {
		if err := f.onExit(i); err != nil {
			return Exit{}, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	there, ok := f.instances[i.Container]
	if !ok {
		return Exit{}, fmt.Errorf("no container %s: %w", i.Container, errdefs.ErrNotFound)
	}
	if there.Running {
		f.t.Errorf("asked how %s ended, which runs", i.Container)
	}
	return f.exits[i.Container], nil
}

// end has a container end now, if it runs.
func (e *engine) end(container string, exit Exit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i, ok := e.instances[container]
	if !ok || !i.Running {
		return
	}
	if exit.At.IsZero() {
		exit.At = e.clock.Now()
	}
	i.Running, i.PID = false, 0
	e.instances[container], e.exits[container] = i, exit
}

// change changes a container behind everybody's back; false removes it.
func (e *engine) change(container string, f func(*Instance) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := e.instances[container]
	if f(&i) {
		e.instances[container] = i
	} else {
		delete(e.instances, container)
	}
}

// of are the containers of a process that run.
func (e *engine) of(id string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []string
	for _, i := range e.instances {
		if i.Process == id && i.Running {
			all = append(all, i.Container)
		}
	}
	return all
}

func (e *engine) done() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.doings, ", ")
}

func (e *engine) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.instances)
}

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

func (h *host) dir() string            { return filepath.Join(h.root, "processes") }
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
	run := &fakeRunner{engine: h.engine}
	cfg := Config{Dir: h.dir(), Runner: run, LogDir: h.logDir, Discard: func(r Record) error { return os.RemoveAll(h.logDir(r)) }, Clock: h.clock, BootID: h.boot, Ports: NewListeners(h.ports, zerolog.Nop()), Log: zerolog.New(zerolog.NewTestWriter(h.t))}
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
	s.t.Helper()
	if err := s.Reconcile(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
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
	r, _, err := s.Start(s.t.Context(), n, quota.Token{}, append(secrets, nil)[0])
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
