package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/quota"
)

// container is a container that is being made or adopted, or is ready for commands.
type container struct {
	spec        Spec
	fingerprint Fingerprint
	token       quota.Token // of the call that it is made for

	wanted   context.Context // ends if no call waits for it any more before it is being made
	unwanted context.CancelCauseFunc
	called   chan struct{} // closed when a call wants it, under Executor.mu
	give     func()        // gives its place back; nil until it has one
	gone     chan struct{} // closed when nothing is left of it
	learned  chan struct{} // closed when exhausted is set, once the container no longer works

	exhausted *Exhausted // the limit that its programs have used up, and that has ended it; nil for none

	ready      chan struct{} // closed when id, spool and session, or err, are set
	isPrepared bool          // Config.Mounts must release it
	class      string        // if pooled: the class of the users who may have it
	stockedOn  *Platform     // if pooled and lasting: the current platform when it was made; nil means its Spec's
	pool       string        // its folder in the pool, if it is or was there
	tmp        string        // the volume of /tmp, if Docker has named it

	paused bool // it was found paused, and has not been woken

	prepared   Prepared // what Config.Mounts returned
	prepareErr error
	id         string
	spool      string    // the spool file's path
	first      *execConn // to the first process of a container made here, until sess takes it over
	sess       *session
	err        error
	holder     uint64     // 0 if Networks does not know the container
	gateway    netip.Addr // set if the container was made here
	unbound    *Endpoint  // of a pooled container that has no network access before it has a user
	ports      forwarder  // of a process's container, or a lasting one
	asks       forwarder  // of a lasting container: package ask
	// reach is what a lasting container may reach now; nil means what its Spec says.
	reach atomic.Pointer[Egress]

	// Under Executor.mu.
	users     int
	refused   cgroup.Refusals // as they were counted last
	frozen    bool            // Docker has paused it, or is about to, until it is used
	freezing  bool            // it is about to be frozen, if that turns out to be allowed
	thawing   *thawing        // its latest thawing, which its users may read
	reclaims  int             // how often reclaiming its memory was tried since it was frozen
	removed   []string        // paths that were removed from outside, and are to be looked up
	lookingUp bool            // lookUpRemoved runs
	running   int             // commands that were handed to the agent and are not known to have ended
	lastUsed  time.Time
	since     time.Time
	begun     bool                    // it is being made, or exists
	retired   bool                    // to be removed when its last user leaves
	claimed   bool                    // another container gets its place
	notBound  bool                    // it runs without a network, because it could not be bound when it was taken over
	lost      bool                    // it ended, or was expelled, while it was being made ready
	lose      context.CancelCauseFunc // set while it is in Executor.preparing
	// unregistered is where it was found on its network, until Networks knows.
	unregistered *Endpoint
}

// isReady reports whether prepare has succeeded; e.mu is held, so a failed one is not in the map.
func (c *container) isReady() bool {
	select {
	case <-c.ready:
		return c.err == nil
	default:
		return false
	}
}

// isSettled reports whether a container exists and is not being made ready: it is ready, or paused as it was found. e.mu is held.
func (c *container) isSettled() bool { return c.isReady() || c.sleeps() }

// platform returns the platform without which the container is stale. A lasting container has its template's in its Spec.
func (c *container) platform() Platform {
	if c.stockedOn != nil {
		return *c.stockedOn
	}
	return c.spec.Platform
}

// hangUp closes the connections to the agents in a container.
func (c *container) hangUp() {
	if c.sess != nil {
		c.sess.close()
	}
	c.asks.close()
}

// sleeps reports whether a container was found paused and stays so until it is used; e.mu is held.
func (c *container) sleeps() bool { return c.paused && c.frozen }

// maxCommands is how many commands may run, or wait to run, in one container. An agent takes more, so it refuses none.
const maxCommands = 500

// all returns the containers of calls and of processes; e.mu is held.
func (e *Executor) all() []*container {
	return slices.AppendSeq(slices.Collect(maps.Values(e.containers)), maps.Values(e.processes))
}

// acquired says whether a call found no container, or a frozen one.
type acquired struct{ cold, thawed bool }

// acquire returns the Spec's container, ready and counted as in use. One that was frozen may still be resuming.
func (e *Executor) acquire(ctx context.Context, spec Spec, token quota.Token) (_ *container, got acquired, _ error) {
	fingerprint := spec.Fingerprint()
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil, got, fmt.Errorf("cannot run commands: the service is shutting down: %w", cerrdefs.ErrUnavailable)
	}
	c := e.containers[fingerprint]
	if c == nil {
		got.cold = true
		c = e.add(spec, fingerprint)
		c.token = token
		log := e.logOf(ctx)
		e.work.Go(func() { e.make(c, log) })
	}
	if c.users >= maxCommands {
		e.mu.Unlock()
		return nil, got, fmt.Errorf("user %q has %d commands running in this container already, which is the most: %w", spec.User, c.users, cerrdefs.ErrResourceExhausted)
	}
	c.users++
	c.demand()
	got.thawed = c.frozen && !c.sleeps()
	e.thaw(c)
	e.mu.Unlock()
	select {
	case <-c.ready:
	case <-ctx.Done():
		e.release(c)
		return nil, got, context.Cause(ctx)
	}
	if c.err != nil {
		e.release(c)
		return nil, got, c.err
	}
	return c, got, nil
}

// add registers a container that is to be made; e.mu is held.
func (e *Executor) add(spec Spec, fingerprint Fingerprint) *container {
	now := time.Now()
	c := &container{spec: spec, fingerprint: fingerprint, ready: make(chan struct{}), gone: make(chan struct{}), learned: make(chan struct{}), called: make(chan struct{}), since: now, lastUsed: now}
	c.wanted, c.unwanted = context.WithCancelCause(e.ctx)
	e.containers[fingerprint] = c
	e.publish(c, "starting")
	return c
}

func (e *Executor) release(c *container) {
	e.mu.Lock()
	c.users--
	c.lastUsed = time.Now()
	remove := c.users == 0 && c.retired && e.drop(c)
	if c.users == 0 && !c.begun && e.drop(c) {
		c.unwanted(errUnwanted) // its maker removes it
	}
	e.mu.Unlock()
	if remove {
		e.discard(c)
	}
}

var errUnwanted = errors.New("no call waits for the container any more")

// drop takes a container out of the map, and reports whether it was there; e.mu is held. The caller for which it was
// there removes the container, and then calls finishRemoval.
func (e *Executor) drop(c *container) bool {
	if e.containers[c.fingerprint] != c {
		return false
	}
	delete(e.containers, c.fingerprint)
	e.leaving[c] = true
	return true
}

// Expel removes a container with all that runs in it. It does not block: if the container is being made, its maker
// removes it, and no call gets it.
func (e *Executor) Expel(fingerprint Fingerprint) {
	e.mu.Lock()
	c := e.containers[fingerprint]
	switch {
	case c == nil:
		for _, c := range slices.AppendSeq(slices.Collect(maps.Keys(e.launching)), maps.Values(e.preparing)) {
			if c.fingerprint == fingerprint {
				c.markLost()
			}
		}
		e.mu.Unlock()
		e.expelProcess(fingerprint)
	case c.isSettled():
		remove := e.givenUp(c, func(*container) {}) // before a call wakes it
		e.mu.Unlock()
		c.hangUp()
		remove()
	default:
		c.markLost()
		c.demand() // so that its turn comes
		e.mu.Unlock()
	}
}

// Leave gives up all containers of a user's calls, with what runs in them, and returns when they are gone or ctx has ended.
func (e *Executor) Leave(ctx context.Context, user string) error {
	e.mu.Lock()
	var theirs []*container
	for _, c := range e.containers {
		if c.spec.User == user {
			theirs = append(theirs, c)
		}
	}
	e.mu.Unlock()
	for _, c := range theirs {
		e.Expel(c.fingerprint)
	}
	for _, c := range theirs {
		select {
		case <-c.gone:
		case <-ctx.Done():
			return fmt.Errorf("the containers of user %q do not end: %w", user, context.Cause(ctx))
		}
	}
	return nil
}

// discard removes a container in the background.
func (e *Executor) discard(c *container) {
	e.work.Go(func() {
		c.hangUp()
		if err := e.dispose(c); err != nil {
			e.tell(e.ctx, c, Incident{What: "cannot remove container", Err: err})
		}
		e.finishRemoval(c)
	})
}

// retire removes the containers that match: at once if they are unused, else when their last user leaves.
func (e *Executor) retire(match func(*container) bool) {
	e.mu.Lock()
	var unused []*container
	for _, c := range e.containers {
		if !c.isSettled() || !match(c) {
			continue // a call waits for a container that is still being made
		}
		c.retired = true
		if c.users == 0 && e.drop(c) {
			unused = append(unused, c)
		}
	}
	e.mu.Unlock()
	for _, c := range unused {
		e.tell(e.ctx, c, Incident{What: "removing container: idle or stale"})
		e.discard(c)
	}
}

// Container describes a warm container.
type Container struct {
	Name        string
	ID          string // empty while it is being made
	User        string // empty in the pool
	Fingerprint Fingerprint
	Runtime     string
	State       string // starting, idle, frozen or busy; in the pool starting or pooled; in events also removed
	Commands    int    // that are running in it
	Since       time.Time
	LastUsed    time.Time
}

// Containers lists this instance's containers of users, by name.
func (e *Executor) Containers() []Container { return e.list(false) }

// HoldsFile reports whether a container of a user's, of whatever kind, has a file as a mount of its own.
func (e *Executor) HoldsFile(user string, id FileID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	holds := func(c *container) bool {
		return c.spec.User == user && slices.ContainsFunc(c.spec.Mounts, func(m Mount) bool { return m.ID.Same(id) })
	}
	for _, c := range e.containers {
		if holds(c) {
			return true
		}
	}
	for _, c := range e.processes {
		if holds(c) {
			return true
		}
	}
	return false
}

// Pooled lists this instance's containers that wait for future users, or are being made for them, by name.
func (e *Executor) Pooled() []Container { return e.list(true) }

func (e *Executor) list(pooled bool) []Container {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := make([]Container, 0, len(e.containers))
	for _, c := range e.containers {
		if c.spec.IsPooled() != pooled {
			continue
		}
		state, id := "starting", ""
		if c.isSettled() {
			state, id = "idle", c.id
			switch {
			case c.users > 0:
				state = "busy"
			case c.frozen:
				state = "frozen"
			}
		}
		shown := c.describe(state)
		shown.ID = id
		list = append(list, shown)
	}
	slices.SortFunc(list, func(a, b Container) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// describe describes a container in a state; Executor.mu is held for what may change. One that is idle in the pool is pooled.
func (c *container) describe(state string) Container {
	user := c.spec.User
	if c.spec.IsPooled() {
		user = ""
		if state == "idle" {
			state = "pooled"
		}
	}
	return Container{
		Name: c.spec.ContainerName(), User: user, Fingerprint: c.fingerprint,
		Runtime: c.spec.Runtime(), State: state, Commands: c.users, Since: c.since, LastUsed: c.lastUsed,
	}
}

// publish publishes the state of a container to callers that may know of its user, and of a pooled one to callers that
// act for everyone. e.mu is held.
func (e *Executor) publish(c *container, state string) {
	told := c.describe(state)
	e.cfg.Events.Publish(events.Container, told.User, told)
}
