package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/dockerd"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Config is what an Executor needs. All fields but Quotas must be set.
type Config struct {
	// Instance is the Platform.Instance of all containers that this Executor may touch.
	Instance string
	// DataDir is the Platform.DataDir of the same.
	DataDir string
	// IdleTimeout is after how long without a command a container is removed, until SetIdleTimeout.
	IdleTimeout time.Duration
	// Platform is the present platform; containers of any other are stale. It may ask the engine.
	Platform func(context.Context) (Platform, error)
	// Mounts prepares the host for each container.
	Mounts MountPreparer
	// ImagesChanged is called when the engine's images may have changed, so that the next Platform
	// is a fresh one. It must not block.
	ImagesChanged func()
	// Quotas bound how many containers there may be, and how many are made at a time; nil for no bounds.
	Quotas *quota.Ledger
	// Networks decides what passes on the containers' networks.
	Networks Networks
	Log      zerolog.Logger
}

// ProcessWatcher is told what becomes of the containers of durable processes. Its methods must not block.
type ProcessWatcher interface {
	// Ended says that the container of a process has ended or is gone, and may be wrong.
	Ended(process string)
	// Lost says that calls of Ended may be missing.
	Lost()
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

	forsakenGone atomic.Bool // what was made under a lost id is

	idleTimeout atomic.Int64  // nanoseconds
	idleChanged chan struct{} // has one when idleTimeout was set

	pauses pauses
	starts starts

	verifying  fileLocks         // of what is mounted, held while that is verified
	networking sync.Mutex        // held while a network is looked at, made or removed
	gateways   map[string]string // under networking: the containers that are the networks' gateways, by profile

	mu         sync.Mutex
	closed     bool
	containers map[Fingerprint]*warm
	leaving    map[*warm]bool   // taken out of containers, and not removed yet
	processes  map[string]*warm // those of durable processes, by the engine's id
	preparing  map[string]*warm // those that are being made ready, of either kind, by the engine's id
	queue      []*warm          // those that are to be adopted
	adopting   int              // how many are, besides those that calls wait for
}

// warm is a container that is being made, adopted, or ready for commands.
type warm struct {
	spec        Spec
	fingerprint Fingerprint
	token       quota.Token // of the call for which it is made

	wanted   context.Context // ends when nobody waits for it before it has begun to be made
	unwanted context.CancelCauseFunc
	give     func()        // gives its place back; nil until it has one
	gone     chan struct{} // closed when nothing is left of it

	ready      chan struct{} // closed when id, spool and session, or err, are set
	isPrepared bool          // Config.Mounts is to release it

	paused bool // it was found so

	prepared   Prepared // by Config.Mounts
	prepareErr error
	id         string
	spool      string // the spool file's path
	sess       *session
	err        error
	// addr is valid while Networks knows the container, gateway when it was made here.
	addr, gateway netip.Addr
	ports         forwarder // of a process's

	// Under Executor.mu.
	users    int
	running  int // commands that have been handed to the agent, and are not known to have ended
	lastUsed time.Time
	since    time.Time
	begun    bool                    // it is being made, or there
	retired  bool                    // to be removed when its last user leaves
	claimed  bool                    // another is to have its place
	lost     bool                    // it ended while it was made ready
	lose     context.CancelCauseFunc // while it is in Executor.preparing
}

// isReady says that prepare has succeeded; e.mu is held, so a failed one is not in the map.
func (w *warm) isReady() bool {
	select {
	case <-w.ready:
		return w.err == nil
	default:
		return false
	}
}

// maxCommands is how many commands may run, or wait to run, in one container: fewer than an agent
// takes, so that none is refused there.
const maxCommands = 500

// New makes an Executor on an engine, which need not be up. It closes the client at Shutdown.
func New(docker *client.Client, cfg Config) *Executor {
	ctx, cancel := context.WithCancel(context.Background())
	e := &Executor{
		cfg: cfg, docker: docker, ctx: ctx, cancel: cancel, containers: map[Fingerprint]*warm{}, leaving: map[*warm]bool{}, processes: map[string]*warm{}, gateways: map[string]string{},
		preparing: map[string]*warm{}, idleChanged: make(chan struct{}, 1),
	}
	e.idleTimeout.Store(int64(cfg.IdleTimeout))
	e.stopping, e.stop = context.WithCancelCause(context.Background())
	return e
}

// SetIdleTimeout changes after how long without a command a container is removed, for those that there are, too.
func (e *Executor) SetIdleTimeout(d time.Duration) {
	e.idleTimeout.Store(int64(d))
	select {
	case e.idleChanged <- struct{}{}:
	default: // the reaper has yet to see the last one
	}
}

// Start adopts and removes what an earlier service left, as Reconcile does, and then follows the
// engine's events and removes idle containers, until Shutdown. An engine that is down is waited for
// in the background.
func (e *Executor) Start(ctx context.Context, processes ProcessWatcher) {
	if err := e.reconcile(ctx, processes.Lost); err != nil {
		e.cfg.Log.Warn().Err(err).Msg("cannot compare with the engine yet")
	}
	e.work.Go(func() { e.follow(processes) })
	e.work.Go(e.reapIdle)
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
	for _, w := range e.containers {
		switch {
		case !w.isReady():
		case w.running > 0:
			e.cfg.Log.Warn().Str("user", w.spec.User).Str("container", w.spec.ContainerName()).Int("commands", w.running).
				Msg("removing the container: its commands are not known to have ended")
			e.drop(w)
			e.discard(w)
		default:
			e.work.Go(w.sess.close)
		}
	}
	for _, w := range e.processes {
		e.work.Go(w.ports.close)
	}
	e.adoptNext()
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
func (e *Executor) Run(ctx context.Context, spec Spec, c Command, out Output) (result Result, err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(e.stopping, func() { end(context.Cause(e.stopping)) })()
	if c.Started != nil {
		c.Started = sync.OnceFunc(c.Started)
	}
	err = e.again(ctx, spec.User, func() (err error) {
		result, err = e.runOnce(ctx, spec, c, out, result.Timing.Container)
		return err
	})
	if err != nil && e.stopping.Err() != nil {
		err = context.Cause(e.stopping)
	}
	return result, err
}

// runOnce is Run in one container. waited is what the call has waited for others already.
func (e *Executor) runOnce(ctx context.Context, spec Spec, c Command, out Output, waited time.Duration) (Result, error) {
	begun := time.Now()
	w, cold, err := e.acquire(ctx, spec, c.Token)
	waited += time.Since(begun)
	if err != nil {
		return Result{Timing: Timing{Container: waited}}, err
	}
	defer e.release(w)
	if c.Started != nil {
		c.Started()
	}
	e.runs(w, 1)
	result, err := w.sess.run(ctx, c, out)
	if errors.Is(err, ErrSession) || errors.Is(err, errLost) {
		// Do not wait for its watcher to notice: the next call must get another container.
		e.forget(w)
	} else {
		e.runs(w, -1)
	}
	result.InContainer, result.Cold, result.Timing.Container = true, cold, waited
	return result, err
}

// runs counts the commands of a container that may be running.
func (e *Executor) runs(w *warm, more int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w.running += more
}

// acquire returns the Spec's container, ready and counted as in use.
func (e *Executor) acquire(ctx context.Context, spec Spec, token quota.Token) (_ *warm, cold bool, _ error) {
	fingerprint := spec.Fingerprint()
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil, false, fmt.Errorf("cannot run commands: the service is shutting down: %w", cerrdefs.ErrUnavailable)
	}
	w := e.containers[fingerprint]
	if w == nil {
		cold = true
		w = e.add(spec, fingerprint)
		w.token = token
		log := e.logOf(ctx)
		e.work.Go(func() { e.make(w, log) })
	}
	if w.users >= maxCommands {
		e.mu.Unlock()
		return nil, false, fmt.Errorf("user %q has %d commands running in this container already, which is the most: %w", spec.User, w.users, cerrdefs.ErrResourceExhausted)
	}
	w.users++
	e.hasten(w)
	e.mu.Unlock()
	select {
	case <-w.ready:
	case <-ctx.Done():
		e.release(w)
		return nil, false, context.Cause(ctx)
	}
	if w.err != nil {
		e.release(w)
		return nil, false, w.err
	}
	return w, cold, nil
}

// add registers a container to be; e.mu is held.
func (e *Executor) add(spec Spec, fingerprint Fingerprint) *warm {
	now := time.Now()
	w := &warm{spec: spec, fingerprint: fingerprint, ready: make(chan struct{}), gone: make(chan struct{}), since: now, lastUsed: now}
	w.wanted, w.unwanted = context.WithCancelCause(e.ctx)
	e.containers[fingerprint] = w
	return w
}

func (e *Executor) release(w *warm) {
	e.mu.Lock()
	w.users--
	w.lastUsed = time.Now()
	remove := w.users == 0 && w.retired && e.drop(w)
	if w.users == 0 && !w.begun && e.drop(w) {
		w.unwanted(errUnwanted) // whoever makes it has it leave
	}
	e.mu.Unlock()
	if remove {
		e.discard(w)
	}
}

var errUnwanted = errors.New("nobody waits for the container any more")

// drop takes a container out of the map; e.mu is held. It says whether it was in it: whoever took
// it out removes it, and then calls left.
func (e *Executor) drop(w *warm) bool {
	if e.containers[w.fingerprint] != w {
		return false
	}
	delete(e.containers, w.fingerprint)
	e.leaving[w] = true
	return true
}

// forget gives a container up that does not work any more.
func (e *Executor) forget(w *warm) {
	e.mu.Lock()
	mine := e.drop(w)
	closes := e.closed && w.running == 0 // so the session has ended, and the container stays
	e.mu.Unlock()
	if mine && !closes {
		e.cfg.Log.Warn().Str("user", w.spec.User).Str("container", w.spec.ContainerName()).
			Msg("session with the container has ended; removing the container")
		e.discard(w)
	}
}

// Expel gives up a container with all that runs in it. It blocks while the container is being made.
func (e *Executor) Expel(fingerprint Fingerprint) {
	e.mu.Lock()
	w := e.containers[fingerprint]
	e.mu.Unlock()
	if w == nil {
		e.expelProcess(fingerprint)
		return
	}
	select {
	case <-w.ready:
	case <-e.ctx.Done():
		return
	}
	if w.err == nil {
		w.sess.close()
		e.forget(w)
	}
}

// discard removes a container in the background.
func (e *Executor) discard(w *warm) {
	e.work.Go(func() {
		if w.sess != nil {
			w.sess.close()
		}
		if err := e.removeWarm(w); err != nil {
			e.cfg.Log.Warn().Err(err).Str("container", w.spec.ContainerName()).Msg("cannot remove container")
		}
		e.left(w)
	})
}

// make makes a container when its turn has come.
func (e *Executor) make(w *warm, log *zerolog.Logger) {
	done, err := e.admit(w)
	if err != nil {
		w.err = fmt.Errorf("cannot prepare a container for user %q: %w", w.spec.User, err)
		e.giveUp(w)
		return
	}
	defer done()
	e.prepare(w, log)
}

// giveUp tells those who wait for a container that it has come to nothing: w.err says why.
func (e *Executor) giveUp(w *warm) {
	e.mu.Lock()
	e.drop(w)
	e.mu.Unlock()
	w.unwanted(nil)
	close(w.ready)
	e.left(w)
}

// prepare makes a container or, when w.id is set, takes one over, and opens the agent's session. log is that of
// the call for which it does.
func (e *Executor) prepare(w *warm, log *zerolog.Logger) {
	ctx, cancel := context.WithTimeout(log.WithContext(e.ctx), creationLimit)
	defer cancel()
	start := time.Now()
	adopted := w.id != ""
	err := e.establish(ctx, w)
	if err != nil {
		log.Error().Err(err).Str("container", w.spec.ContainerName()).Msg("container failed")
		w.err = fmt.Errorf("cannot prepare a container for user %q: %s", w.spec.User, w.spec.withoutHostPaths(dockerd.Explain(e.docker, err).Error()))
		if errors.Is(err, errLost) {
			w.err = lostError{w.err}
		}
		e.giveUp(w)
		return
	}
	e.mu.Lock()
	e.attended(w)
	close(w.ready) // from here on it is ended's to give it up
	e.mu.Unlock()
	if w.lost {
		w.sess.close()
	}
	e.work.Go(func() {
		<-w.sess.broken()
		w.sess.spool.close()
		e.forget(w)
	})
	log.Info().Str("user", w.spec.User).Str("container", w.spec.ContainerName()).
		Str("runtime", w.spec.Runtime()).Bool("adopted", adopted).
		Dur("took", time.Since(start)).Msg("container ready")
}

// logOf is the log of a call, which has the request's id, or the executor's own.
func (e *Executor) logOf(ctx context.Context) *zerolog.Logger {
	if log := zerolog.Ctx(ctx); log.GetLevel() != zerolog.Disabled {
		return log
	}
	return &e.cfg.Log
}

// reapIdle removes what nobody has used for the idle time.
func (e *Executor) reapIdle() {
	idle := func() time.Duration { return time.Duration(e.idleTimeout.Load()) }
	interval := func() time.Duration { return min(max(idle()/4, 100*time.Millisecond), time.Minute) }
	ticker := time.NewTicker(interval())
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			limit := time.Now().Add(-idle())
			e.retire(func(w *warm) bool { return w.users == 0 && w.lastUsed.Before(limit) })
		case <-e.idleChanged:
			ticker.Reset(interval())
		case <-e.ctx.Done():
			return
		}
	}
}

// retire removes the containers that match, at the latest when their last user leaves.
func (e *Executor) retire(match func(*warm) bool) {
	e.mu.Lock()
	var unused []*warm
	for _, w := range e.containers {
		if !w.isReady() || !match(w) {
			continue // what is still being made has someone who waits for it
		}
		w.retired = true
		if w.users == 0 && e.drop(w) {
			unused = append(unused, w)
		}
	}
	e.mu.Unlock()
	for _, w := range unused {
		e.cfg.Log.Info().Str("user", w.spec.User).Str("container", w.spec.ContainerName()).Msg("removing container: idle or stale")
		e.discard(w)
	}
}
