package dockerexec

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/dockerexec/networks"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Container is one container, from the wish for it to its last trace. Its Life says in which state
// it is; the rest is what it has. Most take the commands of calls, through a session with the agent
// inside. A detached one runs by itself: it is that of a durable process, or a persistent one. What
// waits in the pool is not detached yet, whatever it will be.
type Container struct {
	*life.Life
	spec        Spec
	fingerprint Fingerprint
	token       quota.Token // of the call that it is made for
	since       time.Time
	foundPaused bool
	on          Platform // without which it is stale

	// Its maker sets these before it is settled.
	resources
	sess *session.Session
	// ports and asks are the agents of a container without a session that connect to its ports and
	// run its commands.
	ports, asks session.OnDemand

	// because is why this service ended it without being asked to; nil if it did not.
	because atomic.Pointer[string]

	learned chan struct{} // closed when exhausted is set, once the container no longer works
	// the limit that its programs have used up, and that has ended it; nil for none
	exhausted *Exhausted
	removing  sync.Mutex // held while it is removed

	place atomic.Pointer[func()] // gives its place in the quotas back; nil while it has none

	// Under Executor.mu.
	refused   cgroup.Refusals // as they were counted last
	reclaims  int             // how often reclaiming its memory was tried since it was frozen
	removed   []string        // paths that were removed from outside, and are to be looked up
	hears     hearing
	lookingUp bool // lookUpRemoved runs
}

// resources are what a container has besides itself. When it leaves the pool they go to the
// container that it becomes.
type resources struct {
	mounts *preparation
	spool  string   // the spool file's path
	tmp    string   // the volume of /tmp
	pool   string   // its folder in the pool, if it is or was there
	writes []string // the directories of the host that its programs can write to
	// to the first process of a container made here, until sess takes it over
	first session.Conn
	net   *networks.Member // its place on its network; nil without one
}

// preparation is what was prepared on the host for a container.
type preparation struct {
	Prepared
	turn   chan struct{} // holds one while it is prepared
	mu     sync.Mutex
	of     Spec // that it was prepared for
	is     bool
	closed bool // it was released, or will not be needed
	lost   bool // closed after another host may have taken the home over
	err    error
}

// prepare prepares the host, unless that has succeeded or failed before.
func (p *preparation) prepare(mounts mountPreparer, spec Spec) error {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	p.mu.Lock()
	is, err := p.is || p.closed, p.err
	p.mu.Unlock()
	if is || err != nil {
		return err
	}
	return p.again(mounts, spec)
}

// again prepares the host. If that is not needed any more, it is released at once.
func (p *preparation) again(mounts mountPreparer, spec Spec) error {
	prepared, err := mounts.Prepare(spec)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
	if err == nil && p.closed {
		p.end(mounts, spec)
	} else if err == nil {
		p.Prepared, p.of, p.is = prepared, spec, true
	}
	return err
}

// rebind has what was prepared belong to another Spec.
func (p *preparation) rebind(mounts mountPreparer, to Spec) error {
	from := p.of
	p.of = to // even after an error
	return mounts.Rebind(from, to)
}

// release releases what was prepared, once. lost says that another host may have taken the home
// over.
func (p *preparation) release(mounts mountPreparer, lost bool) {
	p.mu.Lock()
	release := p.is
	p.is, p.closed, p.lost = false, true, lost
	p.mu.Unlock()
	if release {
		p.end(mounts, p.of)
	}
}

func (p *preparation) end(mounts mountPreparer, of Spec) {
	if p.lost {
		mounts.Forget(of)
	} else {
		mounts.Release(of)
	}
}

// newContainer returns a container that is to be made, or one that was found, if id is set.
func (e *Executor) newContainer(spec Spec, fingerprint Fingerprint, id string,
	paused bool) *Container {
	c := &Container{
		Life: life.New(e.ctx, life.Config{Engine: e.engine, Detached: spec.isDetached(), ID: id,
			Paused: paused}),
		spec: spec, fingerprint: fingerprint, since: time.Now(), foundPaused: paused,
		on:        spec.Platform,
		resources: resources{mounts: &preparation{turn: make(chan struct{}, 1)}, tmp: spec.tmpName()},
		learned:   make(chan struct{}),
	}
	if spec.Process.ID != "" {
		c.asks.EndsAfter = asksRarely
	}
	return c
}

// asksRarely is after how long the agent ends that runs commands beside a process: few are run, and
// it takes memory.
const asksRarely = time.Minute

// isDetached reports whether the container goes on without calls and without the service.
func (s Spec) isDetached() bool { return !s.hasSession() && !s.IsPooled() }

// Spec returns what the container is made from.
func (c *Container) Spec() Spec { return c.spec }

// Since returns when this service has made or found it, or when it was stocked.
func (c *Container) Since() time.Time { return c.since }

// Session returns the session with the agent inside, once the container is settled.
func (c *Container) Session() *session.Session { return c.sess }

// Account returns whose bounds apply to the container.
func (c *Container) Account() quota.Account {
	return quota.Account{User: c.spec.User, Token: c.token}
}

// SetPlace sets what gives its place in the quotas back. It is called when nothing is left of the
// container.
func (c *Container) SetPlace(give func()) { c.place.Store(&give) }

// HasPlace reports whether it takes a place in the quotas.
func (c *Container) HasPlace() bool { return c.place.Load() != nil }

func (c *Container) givePlace() {
	if give := c.place.Swap(nil); give != nil {
		(*give)()
	}
}

// is reports whether the container is in one of the states.
func (c *Container) is(states ...life.State) bool { return slices.Contains(states, c.Now().State) }

// forgetFirst closes what is open of the first process's stdin and stdout.
func (c *Container) forgetFirst() {
	if c.first != nil {
		_ = c.first.Close()
		c.first = nil
	}
}

// hangUp closes the connections to the container's programs.
func (c *Container) hangUp() {
	c.forgetFirst()
	if c.sess != nil {
		c.sess.Close()
	}
	c.asks.Close()
	c.ports.Close()
}
