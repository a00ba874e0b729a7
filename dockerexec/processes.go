package dockerexec

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
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

// InspectProcess asks Docker about a process's container. The end of one that runs is watched from
// then on.
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
	if p.Running {
		e.watchEnd(p.ID, p.PID)
	} else if !p.OOM {
		p.OOM = e.watchedEnd(ctx, p.ID) != nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if record, bound := e.bound[id]; bound {
		p.Spec = record.Spec
	}
	if c := e.ids[id]; c != nil && c.because.Load() != nil {
		p.Why = *c.because.Load()
	}
	return p, nil
}

// processSpec reads a Spec back as it was written. A process outlives the service that started it,
// so that service's Specs may have had other fields, and another fingerprint.
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

// inspectAtOnce is how many containers Docker is asked about at a time.
const inspectAtOnce = 8
