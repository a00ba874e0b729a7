package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"
	"github.com/rs/zerolog"
	"golang.org/x/sync/singleflight"

	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Config is what an Executor needs. All fields but Host, Quotas, MayStart, CgroupParent and LastingEgress must be set.
type Config struct {
	// Instance is the Platform.Instance of all containers that this Executor may touch.
	Instance string
	// Host is the name of this host among those that share usersDir; empty for one alone.
	Host string
	// DataDir is the Platform.DataDir of the same.
	DataDir string
	// Idle says what becomes of containers in which nothing runs, until SetIdle.
	Idle Idle
	// Ahead has a shell wait for the next command in each container in which nothing runs, until SetAhead.
	Ahead bool
	// MayStart is asked before each start of a user's container and each binding of one, and after it; an error of class
	// Unavailable says that none may be. Nil is for always.
	MayStart func(user string) error
	// CgroupParent is the control group that containers are put below; empty for Docker's own.
	CgroupParent string
	// Platform is the present platform; containers of any other are stale. It may ask Docker.
	Platform func(context.Context) (Platform, error)
	// Mounts prepares the host for each container.
	Mounts mountPreparer
	// ImagesChanged is called when Docker's images may have changed, so that the next Platform
	// is a fresh one. It must not block.
	ImagesChanged func()
	// Quotas bound how many containers there may be, and how many are made at a time; nil for no bounds.
	Quotas *quota.Ledger
	// PoolDir is the folder of pooled containers' homes, on Docker's host, and GiveHome renames the folder of a PoolUser to
	// be a user's who has none: errors are fs.ErrNotExist when it is not there, and fs.ErrExist when the user has one.
	PoolDir  string
	GiveHome func(from, to string) error
	// Networks decides what passes on the containers' networks.
	Networks networks
	// LastingEgress is what the container of a sandbox that lasts may reach now, of an earlier service's. Nil is for a
	// service without such sandboxes: they reach nothing.
	LastingEgress func(id string) (reach Egress, known bool)
	// Events gets the states of containers, except pooled ones, and Incidents; nil for none.
	Events *events.Stream
	Log    zerolog.Logger
}

// processWatcher is notified of the ends of durable processes' containers. Its methods must not block.
type processWatcher interface {
	// Ended says that the container of a process has ended or is gone, and may be wrong.
	Ended(process string)
	// Lost says that calls of Ended may be missing.
	Lost()
	// Paused reports whether the container of a process is to stay paused that is found so.
	Paused(process string) bool
}

// Executor keeps one container for each Spec in use. It is safe for concurrent use.
type Executor struct {
	cfg    Config
	docker *client.Client

	ctx    context.Context // ends with Shutdown; what the goroutines of work live by
	cancel context.CancelFunc
	work   sync.WaitGroup

	stopping context.Context // ends with EndCommands; what commands live by
	stop     context.CancelCauseFunc

	watcher processWatcher // from Start on

	forsakenGone atomic.Bool // what was made under a lost id is
	poolTidied   atomic.Bool // what earlier services have left of the pool is gone

	idle  atomic.Pointer[Idle]
	ahead atomic.Bool // Config.Ahead

	holders atomic.Uint64 // that have been given out

	host        cgroup.Host
	usages      usages
	unreclaimed sync.Once // tells that memory cannot be given back

	pauses   pauses
	starts   starts
	starting atomic.Int64 // that Docker is asked for

	adopting   chan struct{}      // has one for each container that is being adopted, besides those that calls wait for
	removals   singleflight.Group // of containers, by Docker's id
	expulsions singleflight.Group // of processes, by Docker's id of their containers
	verifying  fileLocks          // of what is mounted, held while that is verified
	networking sync.Mutex         // held while a network is looked at, made or removed
	gateways   map[string]string  // under networking: the containers that are the networks' gateways, by profile

	mu         sync.Mutex
	closed     bool
	containers map[Fingerprint]*container
	leaving    map[*container]bool   // taken out of containers, and not removed yet
	processes  map[string]*container // those of durable processes, by Docker's id
	preparing  map[string]*container // those that are being made ready, of either kind, by Docker's id
	freezes    struct{ frozen, thawed uint64 }

	warming      map[string]int // by user, the containers on their way that were asked for by Warm
	warmingTotal int
	bound        map[string]poolRecord // of the containers that came from the pool, by Docker's id
}

// New makes an Executor on a Docker daemon, which need not be up. It closes the client at Shutdown.
func New(docker *client.Client, cfg Config) *Executor {
	ctx, cancel := context.WithCancel(context.Background())
	e := &Executor{
		cfg: cfg, docker: docker, ctx: ctx, cancel: cancel, containers: map[Fingerprint]*container{}, leaving: map[*container]bool{}, processes: map[string]*container{}, gateways: map[string]string{},
		preparing: map[string]*container{}, bound: map[string]poolRecord{}, warming: map[string]int{}, adopting: make(chan struct{}, adoptionsAtOnce),
	}
	e.host, e.usages.turn = cgroup.ThisHost(), make(chan struct{}, 1)
	e.idle.Store(&cfg.Idle)
	e.SetAhead(cfg.Ahead)
	e.stopping, e.stop = context.WithCancelCause(context.Background())
	return e
}

// SetAhead changes whether shells wait for commands. One that waits already does till the next command.
func (e *Executor) SetAhead(ahead bool) { e.ahead.Store(ahead) }

// Ahead reports whether a shell is to wait for the next command.
func (e *Executor) Ahead() bool { return e.ahead.Load() }

// Start adopts and removes what an earlier service left, as Reconcile does, and then follows
// Docker's events, and freezes and removes idle containers, until Shutdown. A daemon that is down is waited for
// in the background.
func (e *Executor) Start(ctx context.Context, processes processWatcher) {
	e.watcher = processes
	e.readRecords()
	e.recoverBound()
	if err := e.reconcile(ctx, processes.Lost); err != nil {
		e.cfg.Log.Warn().Err(err).Msg("cannot compare with Docker yet")
	}
	e.work.Go(func() { e.follow(processes) })
	e.work.Go(e.tendIdle)
	e.work.Go(e.watchNetworks)
	e.work.Go(e.removeShims)
}

// Shutdown ends the commands that are running and waits until everything has stopped. Containers
// stay, for the next service to adopt, but for those whose commands are not known to have ended: these go with
// their containers, before it returns.
func (e *Executor) Shutdown() {
	e.EndCommands()
	e.mu.Lock()
	e.closed = true
	for _, c := range e.containers {
		switch {
		case !c.isReady():
		case c.spec.IsPooled(): // no user's, so of no use to the next service
			e.drop(c)
			e.discard(c)
		case c.running > 0:
			e.tell(e.ctx, c, Incident{What: "removing the container: its commands are not known to have ended", Level: zerolog.WarnLevel, Commands: c.running})
			e.drop(c)
			e.discard(c)
		default:
			e.work.Go(c.sess.close)
		}
	}
	for _, c := range e.processes {
		e.work.Go(c.ports.close)
		e.work.Go(c.asks.close)
	}
	e.mu.Unlock()
	e.cancel()
	e.work.Wait()
	_ = e.docker.Close()
}

// EndCommands ends the commands that are running as if their callers had gone, and those that come. The error
// of their calls is of class Unavailable. It does not wait for them.
func (e *Executor) EndCommands() { e.stop(errStopping) }

var errStopping = fmt.Errorf("the service is stopping, so the command was ended; run it again when the service is back: %w", cerrdefs.ErrUnavailable)

// Run executes a command in the container of the Spec, which is made if there is none. It blocks
// until the command and everything that it left running have ended. When ctx ends, so does the
// command, and the error is ctx's cause. An error that wraps ErrSession says that it is unknown
// how far the command came; while it has not begun, a container that is lost is replaced.
func (e *Executor) Run(ctx context.Context, spec Spec, command Command, out Output) (result Result, err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(e.stopping, func() { end(context.Cause(e.stopping)) })()
	if command.Started != nil {
		command.Started = sync.OnceFunc(command.Started)
	}
	err = e.retryLost(ctx, spec.User, func() (err error) {
		result, err = e.runOnce(ctx, spec, command, out, result.Timing.Container)
		return err
	})
	if err != nil && e.stopping.Err() != nil {
		err = context.Cause(e.stopping)
	}
	return result, err
}

// runOnce is Run in one container. waited is what the call has waited for others already.
func (e *Executor) runOnce(ctx context.Context, spec Spec, command Command, out Output, waited time.Duration) (Result, error) {
	begun := time.Now()
	c, got, err := e.acquire(ctx, spec, command.Token)
	waited += time.Since(begun)
	if err != nil {
		return Result{Timing: timing{Container: waited}}, err
	}
	defer e.release(c)
	if command.Started != nil {
		command.Started()
	}
	e.runs(c, 1)
	if c.thawing != nil {
		command.thawed = c.thawing.done
	}
	result, err := c.sess.run(ctx, command, out)
	if c.thawing != nil && errors.Is(err, ErrSession) {
		err = c.thawing.explain(ctx, err)
	}
	if errors.Is(err, ErrSession) || errors.Is(err, errLost) {
		// Do not wait for its watcher to notice: the next call must get another container.
		e.forget(c)
	} else {
		e.runs(c, -1)
	}
	result.InContainer, result.Cold, result.Thawed, result.Timing.Container = true, got.cold, got.thawed, waited
	return result, err
}

// runs counts the commands of a container that may be running.
func (e *Executor) runs(c *container, more int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c.running += more
}

// logOf is the log of a call, which has the request's id, or the executor's own.
func (e *Executor) logOf(ctx context.Context) *zerolog.Logger {
	if log := zerolog.Ctx(ctx); log.GetLevel() != zerolog.Disabled {
		return log
	}
	return &e.cfg.Log
}
