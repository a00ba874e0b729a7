package process

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/plan"
)

// engine is a fakeRunner's containers. They stay when a service ends.
type engine struct {
	clock *fakeClock

	mu        sync.Mutex
	made      int
	instances map[string]Instance // by container
	exits     map[string]Exit
	secrets   []map[string]string // of each start
	doings    []string            // start and signals, in their order
	dropped   int                 // how often what is unread was
	t         testing.TB
}

func newEngine(t testing.TB) *engine {
	return &engine{t: t, clock: &fakeClock{time: monday}, instances: map[string]Instance{}, exits: map[string]Exit{}}
}

// fakeRunner runs processes in Docker. Fields that are set have a say.
type fakeRunner struct {
	*engine
	logDir      func(Record) string
	paused      map[string]bool // by process
	onStart     func(Record) error
	onStarted   func(Record) error
	onInstances func() error // after the list was made
	onStop      func(context.Context, Instance, syscall.Signal) error
	onPause     func(paused bool) // before it is so
	onRemove    func(Instance) error
	onExit      func(Instance) error
	onDial      func(Instance, int) (Conn, error)
	onPorts     func(context.Context, Instance, func([]int) bool) error
	onOpenFiles func(Instance) ([]string, error)
	readiness   Readiness
	notice      string // of each start
}

// pausedIf says which sandboxes are paused.
type pausedIf func(user, id string) bool

func (p pausedIf) IsPaused(user, id string) bool { return p(user, id) }

func (f *fakeRunner) Dir(r Record) string { return f.logDir(r) }

func (f *fakeRunner) DropUnread(string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropped++
	return nil
}

func (f *fakeRunner) Discard(r Record) error { return os.RemoveAll(f.logDir(r)) }

func (f *fakeRunner) Pause(_ context.Context, i Instance) error { return f.setPaused(i, true) }

func (f *fakeRunner) Resume(_ context.Context, i Instance) error { return f.setPaused(i, false) }

func (f *fakeRunner) setPaused(i Instance, paused bool) error {
	if f.onPause != nil {
		f.onPause(paused)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.paused == nil {
		f.paused = map[string]bool{}
	}
	f.paused[i.Process] = paused
	return nil
}

func (f *fakeRunner) Readiness(Record) Readiness {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.readiness
}

// setReady makes all processes ready.
func (f *fakeRunner) setReady() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readiness.OK = true
}

func (f *fakeRunner) Dial(_ context.Context, i Instance, port int) (Conn, error) {
	f.mu.Lock()
	onDial := f.onDial
	f.mu.Unlock()
	return onDial(i, port)
}

func (f *fakeRunner) OpenFiles(_ context.Context, i Instance, _ string) ([]string, error) {
	return f.onOpenFiles(i)
}

func (f *fakeRunner) Ports(ctx context.Context, i Instance, each func([]int) bool) error {
	f.mu.Lock()
	onPorts := f.onPorts
	f.mu.Unlock()
	return onPorts(ctx, i, each)
}

func (f *fakeRunner) Start(ctx context.Context, r Record, secrets map[string]string, _ *plan.Plan) (Instance, error) {
	if f.onStart != nil {
		if err := f.onStart(r); err != nil {
			return Instance{}, err
		}
	}
	if err := context.Cause(ctx); err != nil {
		return Instance{}, err
	}
	i, err := f.add(r, secrets)
	i.Notice, i.Held = f.notice, "what its sandbox holds"
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
		Process: r.ID, User: r.UserID, Container: fmt.Sprintf("c%d", e.made), Started: e.clock.Now().Add(time.Duration(e.made)),
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
