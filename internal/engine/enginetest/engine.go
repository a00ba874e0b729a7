// Package enginetest is an engine in memory, for tests of those who use one. Its containers have no
// kernel: they are created, run, are paused and end as engine.Engine says, on a test's clock, and
// nothing is left of them afterwards.
//
// A test says in three ways what happens to its subject:
//
//   - Script has a verb be late, refuse, or do its work and then say that it failed.
//   - Serve has programs in containers: what answers Attach, Exec and Run.
//   - Add, Change, End, Lose, Disconnect and BreakEvents are what others do to the engine.
//
// Calls returns what the engine has done. What Docker in particular does behind the verbs is tested
// in package engine.
package enginetest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/engine"
)

// Engine is an engine.Engine in memory. It is safe for concurrent use.
type Engine struct {
	ctx context.Context

	mu            sync.Mutex
	script        func(call Call, do func() error) error
	programs      func(Program)
	containers    map[string]*container // by id
	names         map[string]*container
	mounts        map[string]map[*container]bool // by volume
	networks      map[string]engine.Network
	volumes       map[string]engine.Volume
	made          int // containers
	calls         []Call
	subscriptions []*subscription
}

var _ engine.Engine = (*Engine)(nil)

// container is one of the engine's.
type container struct {
	engine.Container
	begun   chan struct{} // closed when it runs for the first time
	ended   chan struct{} // closed while it does not run
	resumed chan struct{} // closed while it is not paused
	gone    chan struct{} // closed when it is removed
	killed  bool          // it ends as soon as it is resumed
	wanted  []engine.Endpoint
}

// New returns an engine without containers. When ctx ends, so does every wait inside.
func New(ctx context.Context) *Engine {
	return &Engine{
		ctx: ctx, containers: map[string]*container{}, names: map[string]*container{},
		mounts: map[string]map[*container]bool{}, networks: map[string]engine.Network{},
		volumes: map[string]engine.Volume{}, programs: func(p Program) { _ = p.Close() },
	}
}

// Call is what the engine was asked to do.
type Call struct {
	// Context is its caller's.
	Context context.Context
	// Verb is the name of the method of engine.Engine.
	Verb string
	// Name is the id or name of the container, network or volume; empty for lists and Events.
	Name string
	// Container is the one that the call is about, as it was before; of Create, as it is to be.
	Container engine.Container
	// Signal is what Signal sends.
	Signal syscall.Signal
	// Labels are those that List asks for.
	Labels []string
}

// Script has the engine call script for each verb but Close, Explain and AbortExecs; nil has it do
// all at once. do is what the engine does then, and what script returns is its answer. So script
// may block before, or after, or refuse. A caller whose context ends leaves, as Docker's may,
// although script and the engine go on; from Pause it does not.
func (e *Engine) Script(script func(call Call, do func() error) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.script = script
}

// Calls returns what the engine has done so far, of some verbs or of all that do more than ask.
// What was refused, or changed nothing, is not among it.
func (e *Engine) Calls(verbs ...string) (done []Call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, call := range e.calls {
		if len(verbs) == 0 || slices.Contains(verbs, call.Verb) {
			done = append(done, call)
		}
	}
	return done
}

// run has a verb done as the script says.
func run[T any](ctx context.Context, e *Engine, call Call, do func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	if err := ctx.Err(); err != nil {
		return answer{}.value, err
	}
	call.Context = ctx
	e.mu.Lock()
	script := e.script
	if c, there := e.containers[call.Name]; there {
		call.Container = c.Container
	}
	e.mu.Unlock()
	if script == nil {
		return do()
	}
	answers := make(chan answer, 1)
	go func() {
		var a answer
		a.err = script(call, func() (err error) {
			a.value, err = do()
			return err
		})
		answers <- a
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		return answer{}.value, ctx.Err()
	}
}

// change is run for a verb that changes a container. do is called with the lock held, and reports
// whether anything has changed.
func (e *Engine) change(
	ctx context.Context, call Call, do func(c *container) (changed bool, err error),
) error {
	_, err := run(ctx, e, call, func() (struct{}, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		c, err := e.find(call.Name)
		if err != nil {
			return struct{}{}, err
		}
		call.Container = c.Container
		changed, err := do(c)
		if changed {
			e.calls = append(e.calls, call)
		}
		return struct{}{}, err
	})
	return err
}

// find returns a container by its id; e.mu is held.
func (e *Engine) find(id string) (*container, error) {
	if c, there := e.containers[id]; there {
		return c, nil
	}
	return nil, fmt.Errorf("no such container: %s: %w", id, cerrdefs.ErrNotFound)
}

// Explain implements engine.Engine.
func (e *Engine) Explain(err error) error { return fmt.Errorf("%v", err) }

// Close implements engine.Engine. It does nothing: others may use the engine.
func (e *Engine) Close() error { return nil }

// ForgottenShims implements engine.Engine: there are no shims.
func (e *Engine) ForgottenShims(context.Context, func(engine.Shim) bool) ([]engine.Shim, error) {
	return nil, nil
}

// Add puts a container there that somebody has made before. What it lacks it gets: an id, a state,
// which is that it runs, and the pid of this process.
func (e *Engine) Add(made engine.Container) (id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.made++
	c := &container{
		Container: made, gone: make(chan struct{}), begun: make(chan struct{}),
		ended: make(chan struct{}), resumed: make(chan struct{}), wanted: made.Endpoints,
	}
	if c.ID == "" {
		c.ID = fmt.Sprintf("%064d", e.made)
	}
	if c.State == "" {
		c.State = specs.StateRunning
	}
	if c.Runs() && c.PID == 0 {
		c.PID = os.Getpid()
	}
	if c.State != engine.Paused {
		close(c.resumed)
	}
	if c.Runs() {
		close(c.begun)
	} else {
		close(c.ended)
	}
	e.containers[c.ID] = c
	e.index(c)
	return c.ID
}

// index has a container found by its name and volumes; e.mu is held.
func (e *Engine) index(c *container) {
	e.names[c.Name] = c
	for _, m := range c.Mounts {
		if m.Type != engine.VolumeType {
			continue
		}
		if e.mounts[m.Source] == nil {
			e.mounts[m.Source] = map[*container]bool{}
		}
		e.mounts[m.Source][c] = true
	}
}

// unindex is its opposite.
func (e *Engine) unindex(c *container) {
	if e.names[c.Name] == c {
		delete(e.names, c.Name)
	}
	for _, m := range c.Mounts {
		if delete(e.mounts[m.Source], c); len(e.mounts[m.Source]) == 0 {
			delete(e.mounts, m.Source)
		}
	}
}

// Change changes what the engine says of a container.
func (e *Engine) Change(id string, change func(*engine.Container)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c, there := e.containers[id]; there {
		e.unindex(c)
		change(&c.Container)
		e.index(c)
	}
}

// End has a container's processes end, as by themselves. The container stays.
func (e *Engine) End(id string, exitCode int, outOfMemory bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c, there := e.containers[id]; there && c.Runs() {
		e.end(c, exitCode, outOfMemory)
	}
}

// Lose takes a container away as somebody else may, and reports whether it was there. Without tell
// no event says so.
func (e *Engine) Lose(id string, tell bool) (there bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, there := e.containers[id]
	if !there {
		return false
	}
	subscriptions := e.subscriptions
	if !tell {
		e.subscriptions = nil
	}
	e.drop(c)
	e.subscriptions = subscriptions
	return true
}

// Disconnect has a container be taken off its networks by somebody else.
func (e *Engine) Disconnect(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c, there := e.containers[id]; there {
		c.Endpoints = nil
		e.tell(engine.Event{Kind: engine.Disconnected, Container: id})
	}
}

// Made returns how many containers there have been.
func (e *Engine) Made() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.made
}

// Containers returns all containers, the oldest first.
func (e *Engine) Containers() (all []engine.Container) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(e.containers)) {
		all = append(all, e.containers[id].Container)
	}
	return all
}

// Find returns a container by its id, if it is there.
func (e *Engine) Find(id string) (found engine.Container, there bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c, there := e.containers[id]; there {
		return c.Container, true
	}
	return found, false
}
