package persistent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/mux"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/quota"
)

// fakeEngine has containers without an engine. Each answers requests as answer says.
type fakeEngine struct {
	t      *testing.T
	answer func(*yamux.Stream, control.Request)
	refuse error // of what is started
	// afterStarted is called when a container has been made, before the answer says so; nil is
	// nothing.
	afterStarted func()
	// beforeAsked is called when a call is on its way into a container; nil is nothing.
	beforeAsked func()
	// afterResumed is called when a container goes on, before the answer says so; nil is nothing.
	afterResumed func()
	// beforeRemoved is called with a container that is about to be removed; nil is nothing.
	beforeRemoved func(id string)

	// unnoticed has PersistentRuns not know yet that a container is out of memory.
	unnoticed bool
	// killed is what programs were killed for in containers that go on.
	killed *dockerexec.Exhausted

	mu sync.Mutex
	// outOfMemory are the containers that have ended, and of which Docker says so.
	outOfMemory map[string]bool
	made        map[string]dockerexec.Spec
	paused      map[string]bool
	reach       map[string]dockerexec.Egress
	removed     []string
	unheard     map[string]bool  // containers of which PersistentRuns knows nothing
	left        map[string]bool  // tokens that are gone
	bounds      quota.Bounds     // of each other
	refuses     map[string]error // of what is paused or removed, by container
}

func (f *fakeEngine) StartPersistent(_ context.Context, spec dockerexec.Spec, _ quota.Token) (dockerexec.ProcessContainer, error) {
	if f.afterStarted != nil {
		defer f.afterStarted()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return dockerexec.ProcessContainer{}, f.refuse
	}
	id := "c-" + spec.Persistent
	if f.outOfMemory != nil { // whose id it must not have
		for id += "-again"; slices.Contains(f.removed, id); {
			id += "-again"
		}
	}
	f.made[id] = spec
	return dockerexec.ProcessContainer{ID: id, Spec: spec, Running: true}, nil
}

func (f *fakeEngine) Persistent(context.Context) (list []dockerexec.ProcessContainer, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, spec := range f.made {
		list = append(list, dockerexec.ProcessContainer{ID: id, Spec: spec, Running: !f.outOfMemory[id]})
	}
	slices.SortFunc(list, func(a, b dockerexec.ProcessContainer) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

func (f *fakeEngine) PersistentRuns(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, there := f.made[id]
	return there && !f.unheard[id] && (!f.outOfMemory[id] || f.unnoticed)
}

// lose takes a container away, as one that ends by itself.
func (f *fakeEngine) lose(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.made, id)
}

// exhaust ends a container, as one that has run out of memory.
func (f *fakeEngine) exhaust(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.outOfMemory = map[string]bool{id: true}
}

// unhear has PersistentRuns know nothing of a container.
func (f *fakeEngine) unhear(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unheard = map[string]bool{id: true}
}

func (f *fakeEngine) Ahead() bool { return true }

func (f *fakeEngine) AskPersistent(ctx context.Context, id string) (control.Stream, error) {
	if !f.PersistentRuns(id) || f.PersistentEnd(ctx, id) != nil {
		return nil, fmt.Errorf("no such container: %w", cerrdefs.ErrNotFound)
	}
	if f.beforeAsked != nil {
		f.beforeAsked()
	}
	f.mu.Lock()
	paused := f.paused[id]
	f.mu.Unlock()
	if paused {
		return nil, fmt.Errorf("not now: %w", life.ErrPaused)
	}
	here, there := net.Pipe()
	client, err := yamux.Client(here, mux.Config(0), nil)
	if err != nil {
		return nil, err
	}
	server, err := yamux.Server(there, mux.Config(10), nil)
	if err != nil {
		return nil, err
	}
	f.t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	go func() {
		stream, err := server.AcceptStream()
		if err != nil {
			return
		}
		var r control.Request
		if wire.ReadMessage(stream, wire.KindRequest, &r) == nil && f.answer != nil {
			f.answer(stream, r)
		}
		_ = stream.Close()
	}()
	return client.OpenStream(ctx)
}

func (f *fakeEngine) set(id string, paused bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused[id] = paused
	return nil
}

func (f *fakeEngine) PauseDetached(_ context.Context, id string) error {
	if err := f.refused(id); err != nil {
		return err
	}
	return f.set(id, true)
}

// refused is the error of what is paused or removed now.
func (f *fakeEngine) refused(id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refuses[id]
}

func (f *fakeEngine) ResumeDetached(_ context.Context, id string) error {
	err := f.set(id, false)
	if f.afterResumed != nil {
		f.afterResumed()
	}
	return err
}

func (f *fakeEngine) RemoveProcess(ctx context.Context, id string) error {
	if err := errors.Join(ctx.Err(), f.refused(id)); err != nil {
		return err
	}
	if f.beforeRemoved != nil {
		f.beforeRemoved(id)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.made, id)
	delete(f.outOfMemory, id)
	f.removed = append(f.removed, id)
	return nil
}

func (f *fakeEngine) DialProcess(context.Context, string, int) (session.PortConn, error) {
	return session.PortConn{}, errors.New("not in this test")
}

func (f *fakeEngine) SetEgress(_ context.Context, id string, reach dockerexec.Egress) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(reach.Domains) == 1 && reach.Domains[0] == "refused.example.org" {
		return errors.New("refused")
	}
	f.reach[id] = reach
	return nil
}

func (f *fakeEngine) PersistentEnd(_ context.Context, id string) *dockerexec.Exhausted {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.outOfMemory[id] {
		return nil
	}
	return &dockerexec.Exhausted{Limit: dockerexec.LimitMemory, Value: 128 << 20}
}

func (f *fakeEngine) PersistentKilled(string) *dockerexec.Exhausted { return f.killed }

func (f *fakeEngine) Usage(context.Context, string) (cgroup.Usage, error) {
	return cgroup.Usage{}, errors.New("not in this test")
}
