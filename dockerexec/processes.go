package dockerexec

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/internal/engine"
)

// ProcessContainer is the container of a durable process, as Docker knows it.
type ProcessContainer struct {
	Process string
	ID      string
	Spec    Spec
	Started time.Time
	PID     int // on Docker's host; 0 when it does not run
	Running bool
	// ExitCode, OOM and Ended are set if it does not run.
	ExitCode int
	OOM      bool
	Ended    time.Time
	// Why says why this service has ended it without being asked to; empty if it has not.
	Why string
}

// InspectProcess asks Docker about a process's container.
func (e *Executor) InspectProcess(ctx context.Context, id string) (ProcessContainer, error) {
	found, err := e.engine.Inspect(ctx, id)
	if err != nil && !cerrdefs.IsNotFound(err) {
		err = e.engine.Explain(err)
	}
	if err != nil {
		return ProcessContainer{}, fmt.Errorf("cannot inspect the process's container: %w", err)
	}
	p := ProcessContainer{
		Process: found.Labels[labelProcess], ID: found.ID, Running: found.Runs(),
		Started: found.Started, Ended: found.Ended, ExitCode: found.ExitCode, OOM: found.OOMKilled,
	}
	if p.Running {
		p.PID = found.PID
	}
	p.Spec, _ = processSpec(found.Labels) // zero if the label cannot be read
	e.mu.Lock()
	defer e.mu.Unlock()
	if record, bound := e.bound[id]; bound {
		p.Spec = record.Spec
	}
	p.Why = e.whyEnded[id]
	return p, nil
}

// processSpec reads a Spec back as it was written. A process outlives the service that started it, so that service's
// Specs may have had other fields, and another fingerprint.
func processSpec(labels map[string]string) (Spec, error) {
	var s Spec
	if err := json.Unmarshal([]byte(labels[labelSpec]), &s); err != nil {
		return Spec{}, fmt.Errorf("label %s is not a spec: %w", labelSpec, err)
	}
	return s, nil
}

// Processes lists the containers of this instance's processes, running or ended.
func (e *Executor) Processes(ctx context.Context) ([]ProcessContainer, error) {
	return e.listAlone(ctx, labelProcess)
}

// listAlone lists this instance's containers that have a label.
func (e *Executor) listAlone(ctx context.Context, label string) ([]ProcessContainer, error) {
	listed, err := e.engine.List(ctx, true, labelInstance+"="+e.cfg.Instance, label)
	if err != nil {
		return nil, e.engine.Explain(err)
	}
	all := make([]ProcessContainer, len(listed))
	var asking errgroup.Group
	asking.SetLimit(inspectAtOnce)
	for i, found := range listed {
		asking.Go(func() (err error) {
			if all[i], err = e.InspectProcess(ctx, found.ID); cerrdefs.IsNotFound(err) {
				return nil // gone meanwhile
			}
			return err
		})
	}
	if err := asking.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(p ProcessContainer) bool { return p.ID == "" }), nil
}

// considerProcess registers the container of a process, or a lasting one, that an earlier service started.
func (e *Executor) considerProcess(found engine.Container) (adopted *container) {
	spec, err := processSpec(found.Labels)
	if err != nil || !found.Runs() {
		return nil
	}
	fingerprint := Fingerprint(found.Labels[labelFingerprint])
	e.mu.Lock()
	known := e.knowsAlone(found.ID)
	record, bound := e.bound[found.ID]
	e.mu.Unlock()
	if known {
		return nil
	}
	if bound {
		spec, fingerprint = record.Spec, record.Spec.Fingerprint()
	}
	c := &container{spec: spec, fingerprint: fingerprint, id: found.ID, ready: make(chan struct{}), paused: found.State == engine.Paused, tmp: tmpOf(found.Mounts)}
	if spec.Lasting != "" {
		c.reach.Store(e.lastingEgress(spec)) // before e.mu is held: who answers may be waiting for it
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.knowsAlone(found.ID) {
		return nil
	}
	e.foundAt(c, found)
	if c.paused {
		e.pauses.found(c.id)
	}
	e.processes[found.ID] = c
	if bound {
		e.renameFound(c, found)
	}
	return c
}

// knowsAlone reports whether the container of a process, or a lasting one, is not to be taken over: this service has
// it, or is shutting down. e.mu is held.
func (e *Executor) knowsAlone(id string) bool {
	for c := range e.launching {
		if c.id == id {
			return true
		}
	}
	return e.processes[id] != nil || e.preparing[id] != nil || e.closed
}

// alone returns the container of a process, or a lasting one, while it runs, paused or not; otherwise nil.
func (e *Executor) alone(id string) *container {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.processes[id]
}

// rebind prepares the host for a process's container again, and opens its network access. A container for which the
// host cannot be prepared, or whose interface leads nowhere, is ended: recreated it has what it needs.
func (e *Executor) rebind(c *container) {
	ctx, cancel := context.WithTimeout(e.ctx, creationLimit)
	defer cancel()
	if err := e.prepareFound(ctx, c); err != nil && e.ctx.Err() == nil {
		e.tell(e.ctx, c, Incident{What: "ending a process that may see hidden files", Level: zerolog.ErrorLevel, Err: err})
		e.endsFor(c.id, fmt.Sprintf("the service could not make sure that it sees nothing hidden, so it was ended: %v", err))
		if err := e.StopProcess(e.ctx, c.id, syscall.SIGKILL, 0); err != nil {
			e.tell(e.ctx, c, Incident{What: "cannot end a process that may see hidden files", Level: zerolog.ErrorLevel, Err: err})
		}
		return
	}
	e.bindFound(ctx, c)
}

// bindFound opens network access for a process's container that was found. If that fails, mendNetworks tries it again.
func (e *Executor) bindFound(ctx context.Context, c *container) {
	err := e.bind(ctx, c)
	if cerrdefs.IsNotFound(err) {
		e.tell(ctx, c, Incident{What: "ending a process that has lost its network", Err: err})
		e.endsFor(c.id, "its network was gone when the service took it over, so it was ended")
		err = e.StopProcess(ctx, c.id, syscall.SIGKILL, 0)
	}
	e.mu.Lock()
	told := c.notBound
	c.notBound = err != nil
	e.mu.Unlock()
	if err != nil && !told && e.ctx.Err() == nil {
		e.tell(ctx, c, Incident{What: "a process keeps running without a network", Err: err})
	}
}

// prepareFound prepares the host for a running container that was found, if that has failed before. While its storage
// does not answer it tries again, until ctx ends.
func (e *Executor) prepareFound(ctx context.Context, c *container) error {
	if c.prepareErr == nil {
		return nil
	}
	prepared, err := backoff.Retry(ctx, func() (Prepared, error) {
		prepared, err := e.cfg.Mounts.Prepare(c.spec)
		if err != nil && !cerrdefs.IsUnavailable(err) {
			err = backoff.Permanent(err)
		}
		return prepared, err
	}, backoff.WithBackOff(backoff.NewConstantBackOff(time.Second)), backoff.WithMaxElapsedTime(0))
	if err != nil {
		return err
	}
	e.mu.Lock()
	runs := e.processes[c.id] == c
	c.prepared, c.isPrepared = prepared, runs
	e.mu.Unlock()
	if !runs {
		e.cfg.Mounts.Release(c.spec)
	}
	return nil
}

// processEnded releases what the container of a process, or a lasting one, had besides itself, unless it is being made
// ready: its maker hears of the end, too.
func (e *Executor) processEnded(id string) {
	e.mu.Lock()
	c := e.processes[id]
	if c == nil || c.lose != nil {
		e.mu.Unlock()
		return
	}
	delete(e.processes, id)
	prepared := c.isPrepared
	e.mu.Unlock()
	e.leave(c)
	if prepared {
		e.cfg.Mounts.Release(c.spec)
	}
	e.work.Go(c.ports.close)
	e.work.Go(c.asks.close)
	e.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), removalLimit)
		defer cancel()
		if err := e.removeTmp(ctx, c.tmpName()); err != nil {
			e.cfg.Log.Warn().Err(err).Msg("cannot remove a volume")
		}
	})
}

// expelProcess ends the container of a process that would see hidden files.
func (e *Executor) expelProcess(fingerprint Fingerprint) {
	e.mu.Lock()
	var id string
	for _, c := range e.processes {
		if c.fingerprint == fingerprint {
			id = c.id
		}
	}
	e.mu.Unlock()
	if id == "" {
		return
	}
	e.endsFor(id, expelled)
	e.expulsions.DoChan(id, func() (any, error) {
		if err := e.signal(e.ctx, id, syscall.SIGKILL); err != nil && !cerrdefs.IsNotFound(err) && !cerrdefs.IsConflict(err) {
			e.cfg.Log.Error().Err(err).Msg("cannot end a process that would see hidden files")
		}
		return nil, nil
	})
}

// expelled is why a process was ended whose view would have changed.
const expelled = "a path that is hidden, read-only or mounted for it, such as its working directory, was moved, replaced or removed by " +
	"another call or on the host; it was ended so that it sees and writes nothing that it may not"

// endsFor keeps why a process is ended that nobody has asked to end, until its container is removed.
func (e *Executor) endsFor(id, why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.whyEnded[id] = why
}

// inspectAtOnce is how many containers Docker is asked about at a time.
const inspectAtOnce = 8
