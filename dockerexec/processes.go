package dockerexec

import (
	"context"
	"encoding/json"
	"fmt"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	containertypes "github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/internal/dockerd"
)

// ProcessContainer is the container of a durable process, as Docker has it.
type ProcessContainer struct {
	Process string
	ID      string
	Spec    Spec
	Started time.Time
	PID     int // on Docker's host; 0 when it does not run
	Running bool
	// ExitCode, OOM and Ended are of one that does not run.
	ExitCode int
	OOM      bool
	Ended    time.Time
}

// InspectProcess asks Docker about a process's container.
func (e *Executor) InspectProcess(ctx context.Context, id string) (ProcessContainer, error) {
	found, err := e.docker.ContainerInspect(ctx, id)
	if err != nil && !cerrdefs.IsNotFound(err) {
		err = dockerd.Explain(e.docker, err)
	}
	if err != nil {
		return ProcessContainer{}, fmt.Errorf("cannot inspect the process's container: %w", err)
	}
	p := ProcessContainer{
		Process: found.Config.Labels[labelProcess], ID: found.ID, Running: found.State.Running,
		ExitCode: found.State.ExitCode, OOM: found.State.OOMKilled,
	}
	p.Started, _ = time.Parse(time.RFC3339Nano, found.State.StartedAt) // zero: it never ran
	p.Ended, _ = time.Parse(time.RFC3339Nano, found.State.FinishedAt)
	if p.Running {
		p.PID = found.State.Pid
	}
	p.Spec, _ = processSpec(found.Config.Labels) // only told
	return p, nil
}

// processSpec reads a Spec back as it was written. A process outlives the service that started it, so it
// may have been written by one whose Specs had other fields, and another fingerprint.
func processSpec(labels map[string]string) (Spec, error) {
	var s Spec
	if err := json.Unmarshal([]byte(labels[labelSpec]), &s); err != nil {
		return Spec{}, fmt.Errorf("label %s is not a spec: %w", labelSpec, err)
	}
	return s, nil
}

// Processes lists the containers of this instance's processes, running or ended.
func (e *Executor) Processes(ctx context.Context) ([]ProcessContainer, error) {
	listed, err := e.docker.ContainerList(ctx, containertypes.ListOptions{
		All: true,
		Filters: filters.NewArgs(
			filters.Arg("label", labelInstance+"="+e.cfg.Instance),
			filters.Arg("label", labelProcess),
		),
	})
	if err != nil {
		return nil, dockerd.Explain(e.docker, err)
	}
	all := make([]ProcessContainer, len(listed))
	faults := make([]error, len(listed))
	indexes := make([]int, len(listed))
	for i := range indexes {
		indexes[i] = i
	}
	atOnce(indexes, func(i int) { all[i], faults[i] = e.InspectProcess(ctx, listed[i].ID) })
	var there []ProcessContainer
	for i, p := range all {
		switch {
		case cerrdefs.IsNotFound(faults[i]): // gone meanwhile
		case faults[i] != nil:
			return nil, faults[i]
		default:
			there = append(there, p)
		}
	}
	return there, nil
}

// considerProcess registers the container of a process that was started by an earlier service.
func (e *Executor) considerProcess(found containertypes.Summary) (adopted *container) {
	spec, err := processSpec(found.Labels)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil || !runs(found) || e.processes[found.ID] != nil || e.closed {
		return nil
	}
	c := &container{spec: spec, fingerprint: Fingerprint(found.Labels[labelFingerprint]), id: found.ID, ready: make(chan struct{}), paused: found.State == containertypes.StatePaused}
	e.processes[found.ID] = c
	return c
}

// rebind opens the way of a process's container again. One whose interface leads nowhere is ended: made anew it has one.
func (e *Executor) rebind(c *container) {
	ctx, cancel := context.WithTimeout(e.ctx, creationLimit)
	defer cancel()
	err := e.bind(ctx, c)
	if cerrdefs.IsNotFound(err) {
		e.cfg.Log.Warn().Err(err).Str("container", c.spec.ContainerName()).Msg("ending a process that has lost its network")
		err = e.StopProcess(ctx, c.id, syscall.SIGKILL, 0)
	}
	if err != nil && e.ctx.Err() == nil {
		e.cfg.Log.Warn().Err(err).Str("container", c.spec.ContainerName()).Msg("a process goes on without a network")
	}
}

// processEnded gives back what the container of a process had besides itself. It says whether it was one.
func (e *Executor) processEnded(id string) bool {
	e.mu.Lock()
	c := e.processes[id]
	delete(e.processes, id)
	e.mu.Unlock()
	if c == nil {
		return false
	}
	e.leave(c)
	if c.isPrepared {
		e.cfg.Mounts.Release(c.spec)
	}
	e.work.Go(c.ports.close)
	e.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), removalLimit)
		defer cancel()
		if err := e.removeTmp(ctx, c.spec.tmpName()); err != nil {
			e.cfg.Log.Warn().Err(err).Msg("cannot remove a volume")
		}
	})
	return true
}

// expelProcess ends the container of a process in which something hidden would be seen.
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
	if err := e.signal(e.ctx, id, syscall.SIGKILL); err != nil && !cerrdefs.IsNotFound(err) && !cerrdefs.IsConflict(err) {
		e.cfg.Log.Error().Err(err).Msg("cannot end a process in which something hidden would be seen")
	}
}

// inspectAtOnce is how many containers Docker is asked about at a time.
const inspectAtOnce = 8

// atOnce asks Docker about each of a list, some at a time, and waits.
func atOnce[T any](list []T, ask func(T)) {
	var asking errgroup.Group
	asking.SetLimit(inspectAtOnce)
	for _, item := range list {
		asking.Go(func() error { ask(item); return nil })
	}
	_ = asking.Wait()
}

// unregister forgets a process's container; it says whether it was known.
func (e *Executor) unregister(c *container) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.processes[c.id] != c {
		return false
	}
	delete(e.processes, c.id)
	return true
}
