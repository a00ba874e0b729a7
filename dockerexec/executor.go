package dockerexec

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"
	"golang.org/x/sync/singleflight"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/dockerexec/mounts"
	"github.com/daycare-run/sandbox/dockerexec/networks"
	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Config is what an Executor needs. All fields but Host, Quotas, CgroupParent and Cgroups must be
// set.
type Config struct {
	// Instance is the Platform.Instance of all containers that this Executor may touch.
	Instance string
	// Host is this host's name among those that share usersDir; empty if no other host does.
	Host string
	// DataDir is the Platform.DataDir of those containers.
	DataDir string
	// Ahead starts a shell that waits for the next command in each container in which nothing runs,
	// until SetAhead changes it.
	Ahead bool
	// Cgroups are the host's control groups; nil for those of this host.
	Cgroups *cgroup.Host
	// CgroupParent is the control group below which containers are put; empty for Docker's own.
	CgroupParent string
	// Platforms knows the current platform; containers of any other are stale.
	Platforms platforms
	// Mounts prepares the host for each container.
	Mounts mountPreparer
	// Quotas bound how many containers there may be, and how many are made at a time; nil for no
	// bounds.
	Quotas *quota.Ledger
	// PoolDir is the folder of pooled containers' homes, on Docker's host. GiveHome renames the
	// folder of a PoolUser to that of a user who has none: the error is fs.ErrNotExist if the
	// folder is not there, and fs.ErrExist if the user has one.
	PoolDir  string
	GiveHome func(from, to string) error
	// Filter decides what passes on the containers' networks.
	Filter networks.Filter
	// Events gets the states of containers, and Incidents; nil for none.
	Events *events.Stream
	Log    zerolog.Logger
}

// platforms knows what containers run on.
type platforms interface {
	// Current returns the current platform. It may ask Docker.
	Current(context.Context) (Platform, error)
	// Forget makes the next Current a fresh one, because Docker's images may have changed. It does
	// not block.
	Forget()
}

// Executor has all containers of this service, and what they need of Docker and of the host. It
// keeps one for each Spec in use. It is safe for concurrent use.
type Executor struct {
	cfg     Config
	engine  engine.Engine
	cgroups *cgroup.Host

	ctx    context.Context // ends with Shutdown, and the goroutines of work with it
	cancel context.CancelFunc
	work   sync.WaitGroup

	gate    atomic.Pointer[Gate] // set by Start
	changes changes
	ahead   atomic.Bool // Config.Ahead

	// closed by begin, when what earlier services wrote down has been read
	begun          chan struct{}
	begin          func()
	reconciled     atomic.Bool // all containers of earlier services are in the registry
	reconciling    sync.Mutex  // held by reconcileOnce
	orphansRemoved atomic.Bool // what was made under a lost id is gone

	unreclaimed sync.Once // logs that memory cannot be reclaimed

	guard    mounts.Guard
	starting atomic.Int64 // how many starts Docker is asked for
	// adopting holds one for each container that is being adopted, except those that calls wait
	// for.
	adopting chan struct{}
	removals singleflight.Group // of containers, by Docker's id
	nets     *networks.Networks
	mending  chan struct{} // holds one when they are to be checked

	mu        sync.Mutex
	closed    bool
	all       map[*Container]bool            // the registry
	users     map[string]map[*Container]bool // the same, by user
	several   map[string]bool                // the users who have more than one
	active    map[string]bool                // those of them of whom a call or a container has begun
	anyActive chan struct{}                  // holds one when there are any of these
	// by what on the host its programs can write to
	writers map[string]map[*Container]bool
	calls   map[Fingerprint]*Container // those that calls find, and the pool's
	ids     map[string]*Container      // those that Docker's events are about, by Docker's id
	// of the containers that came from the pool, by Docker's id
	bound     map[string]poolRecord
	ends      map[string]*end // that are watched, by Docker's id
	inherited poolRest
}

// New returns an Executor for an engine, which need not be up. Shutdown closes it.
func New(runs engine.Engine, cfg Config) *Executor {
	e := &Executor{
		cfg: cfg, engine: runs, cgroups: cmp.Or(cfg.Cgroups, cgroup.ThisHost()),
		changes: changes{told: make(chan Changes, 1)},
		begun:   make(chan struct{}), mending: make(chan struct{}, 1), adopting: make(chan struct{}, adoptionsAtOnce),
		all: map[*Container]bool{}, users: map[string]map[*Container]bool{},
		several: map[string]bool{}, active: map[string]bool{}, anyActive: make(chan struct{}, 1),
		writers: map[string]map[*Container]bool{},
		calls:   map[Fingerprint]*Container{}, ids: map[string]*Container{}, ends: map[string]*end{},
		bound: map[string]poolRecord{},
	}
	e.nets = e.newNetworks()
	e.guard.Neighbours = e.neighbours
	e.guard.Failed = e.mend
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.begin = sync.OnceFunc(func() { close(e.begun) })
	e.SetAhead(cfg.Ahead)
	return e
}

// SetAhead changes whether shells wait for commands. A shell that waits already does so until the
// next command.
func (e *Executor) SetAhead(ahead bool) { e.ahead.Store(ahead) }

// Ahead reports whether shells wait for the next command.
func (e *Executor) Ahead() bool { return e.ahead.Load() }

// Start adopts or removes what an earlier service left, as Reconcile does. Then, until Shutdown, it
// follows Docker's events. A daemon that is down is waited for in the background.
func (e *Executor) Start(ctx context.Context, gate Gate) {
	e.gate.Store(&gate)
	e.readRecords()
	e.recoverBound()
	e.begin()
	if err := e.Reconcile(ctx); err != nil {
		e.cfg.Log.Warn().Err(err).Msg("cannot compare with Docker yet")
	}
	e.work.Go(e.followDocker)
	e.work.Go(e.watchNetworks)
	e.work.Go(e.removeShims)
	e.work.Go(e.relayChanges)
}

// Shutdown waits until everything has stopped. Containers stay for the next service to adopt,
// except pooled ones and those whose commands are not known to have ended: these are removed before
// it returns. Who runs commands in them ends these first.
func (e *Executor) Shutdown() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	for _, c := range e.inState(life.Ready, life.Draining, life.Frozen) {
		e.leaveBehind(c)
	}
	e.cancel()
	e.work.Wait()
	_ = e.engine.Close()
}

// leaveAtShutdown is leaveBehind for a container that became ready after Shutdown has looked.
func (e *Executor) leaveAtShutdown(c *Container) {
	e.mu.Lock()
	closed := e.closed
	e.mu.Unlock()
	if closed {
		e.leaveBehind(c)
	}
}

// leaveBehind releases a container to the next service, or removes it if that has no use for it.
func (e *Executor) leaveBehind(c *Container) {
	now := c.Now()
	switch {
	case c.spec.isDetached():
		e.work.Go(c.hangUp)
	case c.spec.IsPooled() || now.Commands > 0:
		if c.Do(life.Remove, ErrStopping) != life.Removes {
			return
		}
		if now.Commands > 0 {
			e.Tell(e.ctx, c,
				Incident{What: "removing the container: its commands are not known to have ended",
					Level: zerolog.WarnLevel, Commands: now.Commands})
		}
		e.RemoveLater(c)
	default:
		c.Do(life.Release, ErrStopping)
		e.work.Go(c.hangUp)
	}
}

// ErrStopping is why commands end when the service does.
var ErrStopping = fmt.Errorf(
	"the service is stopping, so the command was ended; run it again when the service is back: %w",
	cerrdefs.ErrUnavailable)

// Cgroups returns the host's control groups.
func (e *Executor) Cgroups() *cgroup.Host { return e.cgroups }

// Platform returns the current platform. It may ask Docker.
func (e *Executor) Platform(ctx context.Context) (Platform, error) {
	return e.cfg.Platforms.Current(ctx)
}

// logOf returns the log of a call, which has the request's id, or the executor's own log.
func (e *Executor) logOf(ctx context.Context) *zerolog.Logger {
	if log := zerolog.Ctx(ctx); log.GetLevel() != zerolog.Disabled {
		return log
	}
	return &e.cfg.Log
}
