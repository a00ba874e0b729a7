package dockerexec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/pkg/stdcopy"
	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/dockerd"
	"github.com/daycare-run/sandbox/internal/quota"
)

// A durable process has a container of its own, made from a Spec like any other, whose first program
// runs the command and needs nobody. The Executor makes, finds and ends such containers, and sees to
// what they need on the host and on the network; whether one should run is up to others.

// Process is what a Spec's container runs by itself. Without an ID it waits for commands instead.
type Process struct {
	ID string `json:"id"`
	// Dir is a folder of the agent's (package creds) on the host, which becomes launch.Dir. There is a launch.json in it.
	Dir string `json:"dir"`
}

// ProcessContainer is the container of a durable process.
type ProcessContainer struct {
	Process string
	ID      string
	Spec    Spec
	Started time.Time // as the engine says
	PID     int       // on the engine's host; 0 when it does not run
	Running bool
}

// ProcessExit is how a process's container ended, as the engine saw it.
type ProcessExit struct {
	Code int
	OOM  bool
	At   time.Time
	Dir  string // the process's folder
}

// StartProcess makes the Spec's container and lets its command begin once the mounts are what they
// should be and the network is open. After an error nothing is left of it.
func (e *Executor) StartProcess(ctx context.Context, spec Spec) (_ ProcessContainer, err error) {
	done, err := e.cfg.Quotas.Turn(ctx, quota.Account{User: spec.User})
	if err != nil {
		return ProcessContainer{}, fmt.Errorf("cannot start the process: %w", err)
	}
	defer done()
	w := &warm{spec: spec, fingerprint: spec.Fingerprint(), ready: make(chan struct{}), since: time.Now()}
	defer func() {
		if err != nil {
			e.unregister(w)
			err = errors.Join(fmt.Errorf("cannot start the process: %s", spec.withoutHostPaths(dockerd.Explain(e.docker, err).Error())), e.removeWarm(w))
		}
	}()
	e.mu.Lock()
	closed := e.closed
	e.mu.Unlock()
	if closed {
		return ProcessContainer{}, fmt.Errorf("the service is shutting down: %w", cerrdefs.ErrUnavailable)
	}
	if w.prepared, err = e.cfg.Mounts.Prepare(spec); err != nil {
		return ProcessContainer{}, err
	}
	w.isPrepared = true
	if err := e.start(ctx, w); err != nil {
		return ProcessContainer{}, err
	}
	e.mu.Lock()
	e.processes[w.id] = w
	e.mu.Unlock()
	if err := e.launch(ctx, w); err != nil {
		return ProcessContainer{}, err
	}
	return e.processContainer(ctx, w.id)
}

// launch lets the command of a process's container begin.
func (e *Executor) launch(ctx context.Context, w *warm) error {
	ctx = e.attend(ctx, w)
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.attended(w)
	}()
	done, err := e.pauses.use(ctx, w.id)
	if err != nil {
		return err
	}
	defer done()
	err = e.bind(ctx, w)
	if err == nil {
		err = e.verify(w, func(argv []string) ([]string, error) { return e.witnessByExec(ctx, w, argv) })
	}
	if err == nil {
		// Until it is told so, the first program starts nothing; and it listens once it has read what to start.
		err = e.listening(ctx, w)
	}
	if err != nil && e.isLost(ctx, w) {
		return fmt.Errorf("%w (%v)", errLost, err)
	} else if err != nil {
		return err
	}
	if err := e.docker.ContainerKill(ctx, w.id, "USR1"); err != nil {
		return fmt.Errorf("cannot let the command begin: %w", err)
	}
	return nil
}

// listening waits until the first program has read its launch.json, which it then removes.
func (e *Executor) listening(ctx context.Context, w *warm) error {
	file := filepath.Join(w.spec.Process.Dir, launch.File)
	for polls := 1; ; polls++ {
		if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if polls%64 == 0 {
			if now, err := e.processContainer(ctx, w.id); err != nil {
				return err
			} else if !now.Running {
				return errors.New("its first program has ended before it began")
			}
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("its first program does not begin: %w", context.Cause(ctx))
		}
	}
}

// unregister forgets a process's container; it says whether it was known.
func (e *Executor) unregister(w *warm) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.processes[w.id] != w {
		return false
	}
	delete(e.processes, w.id)
	return true
}

// witnessByExec is witness in a container without a session, in which no command has begun.
func (e *Executor) witnessByExec(ctx context.Context, w *warm, argv []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, witnessLimit)
	defer cancel()
	fail := func(err error) ([]string, error) {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("cannot verify the mounts: %w", err)
	}
	created, err := e.docker.ContainerExecCreate(ctx, w.id, container.ExecOptions{
		User: w.spec.user(), Cmd: argv, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return fail(err)
	}
	attached, err := e.docker.ContainerExecAttach(ctx, created.ID, container.ExecAttachOptions{})
	if err != nil {
		return fail(err)
	}
	defer attached.Close()
	defer context.AfterFunc(ctx, attached.Close)()
	var stdout, stderr bytes.Buffer
	if _, err := stdcopy.StdCopy(&stdout, &stderr, attached.Reader); err != nil {
		return fail(err)
	}
	if stderr.Len() > 0 {
		return fail(errors.New(strings.TrimSpace(stderr.String())))
	}
	ended, err := e.docker.ContainerExecInspect(ctx, created.ID)
	if err == nil && ended.ExitCode != 0 { // then the engine may have written its own error to stdout
		err = fmt.Errorf("it failed with %d: %.1000q", ended.ExitCode, strings.TrimSpace(stdout.String()))
	}
	if err != nil {
		return fail(err)
	}
	return strings.Fields(stdout.String()), nil
}

// processContainer asks the engine about one.
func (e *Executor) processContainer(ctx context.Context, id string) (ProcessContainer, error) {
	found, err := e.docker.ContainerInspect(ctx, id)
	if err != nil {
		return ProcessContainer{}, fmt.Errorf("cannot inspect: %w", err)
	}
	p := ProcessContainer{Process: found.Config.Labels[labelProcess], ID: found.ID, Running: found.State.Running}
	p.Started, _ = time.Parse(time.RFC3339Nano, found.State.StartedAt) // zero: it never ran
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
	listed, err := e.docker.ContainerList(ctx, container.ListOptions{
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
	atOnce(indexes, func(i int) { all[i], faults[i] = e.processContainer(ctx, listed[i].ID) })
	var there []ProcessContainer
	for i, p := range all {
		switch {
		case cerrdefs.IsNotFound(faults[i]): // gone meanwhile
		case faults[i] != nil:
			return nil, dockerd.Explain(e.docker, faults[i])
		default:
			there = append(there, p)
		}
	}
	return there, nil
}

// inspectAtOnce is how many containers the engine is asked about at a time.
const inspectAtOnce = 8

// atOnce asks the engine about each of a list, some at a time, and waits.
func atOnce[T any](list []T, ask func(T)) {
	var asking errgroup.Group
	asking.SetLimit(inspectAtOnce)
	for _, item := range list {
		asking.Go(func() error { ask(item); return nil })
	}
	_ = asking.Wait()
}

// endingLimit is how long the engine may take to notice that a container has ended.
const endingLimit = 5 * time.Second

// StopProcess sends a signal to the first program, which passes it on to all that it has started, and
// kills what is left after the grace. It blocks until the container has ended.
func (e *Executor) StopProcess(ctx context.Context, id string, signal syscall.Signal, grace time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := awaited(ctx, e.docker, id, container.WaitConditionNotRunning)
	fault := fmt.Errorf("the process does not end, although it was killed: %w", cerrdefs.ErrInternal)
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{signal, grace}, {syscall.SIGKILL, removalLimit}} {
		err := e.signal(ctx, id, step.signal)
		if cerrdefs.IsNotFound(err) || cerrdefs.IsConflict(err) { // gone, or not running
			return nil
		}
		wait := step.wait
		if err != nil {
			// A runtime fails so when the container has just ended, and the engine does not know it yet.
			wait = min(wait, endingLimit)
			fault = fmt.Errorf("cannot signal the process: %w", dockerd.Explain(e.docker, err))
		}
		timer := time.NewTimer(wait)
		select {
		case err := <-ended:
			timer.Stop()
			if err != nil && !cerrdefs.IsNotFound(err) {
				return fmt.Errorf("cannot wait for the process to end: %w", err)
			}
			return nil
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
	return fault
}

// RemoveProcess takes a process's container away, running or not.
func (e *Executor) RemoveProcess(_ context.Context, id string) error {
	e.processEnded(id)
	return e.removeContainer(id)
}

// ProcessExit says how a container ended.
func (e *Executor) ProcessExit(ctx context.Context, id string) (ProcessExit, error) {
	found, err := e.docker.ContainerInspect(ctx, id)
	if err != nil {
		return ProcessExit{}, fmt.Errorf("cannot ask how the process ended: %w", dockerd.Explain(e.docker, err))
	}
	exit := ProcessExit{Code: found.State.ExitCode, OOM: found.State.OOMKilled}
	exit.At, _ = time.Parse(time.RFC3339Nano, found.State.FinishedAt)
	if spec, err := processSpec(found.Config.Labels); err == nil {
		exit.Dir = spec.Process.Dir
	}
	return exit, nil
}

// considerProcess registers the container of a process that was started by an earlier service.
func (e *Executor) considerProcess(found container.Summary) (adopted *warm) {
	spec, err := processSpec(found.Labels)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil || !runs(found) || e.processes[found.ID] != nil || e.closed {
		return nil
	}
	w := &warm{spec: spec, fingerprint: Fingerprint(found.Labels[labelFingerprint]), id: found.ID, ready: make(chan struct{}), paused: found.State == container.StatePaused}
	e.processes[found.ID] = w
	return w
}

// rebind opens the way of a process's container again. One whose interface leads nowhere is ended: made anew it has one.
func (e *Executor) rebind(w *warm) {
	ctx, cancel := context.WithTimeout(e.ctx, creationLimit)
	defer cancel()
	err := e.bind(ctx, w)
	if cerrdefs.IsNotFound(err) {
		e.cfg.Log.Warn().Err(err).Str("container", w.spec.ContainerName()).Msg("ending a process that has lost its network")
		err = e.StopProcess(ctx, w.id, syscall.SIGKILL, 0)
	}
	if err != nil && e.ctx.Err() == nil {
		e.cfg.Log.Warn().Err(err).Str("container", w.spec.ContainerName()).Msg("a process goes on without a network")
	}
}

// processEnded gives back what the container of a process had besides itself. It says whether it was one.
func (e *Executor) processEnded(id string) bool {
	e.mu.Lock()
	w := e.processes[id]
	delete(e.processes, id)
	e.mu.Unlock()
	if w == nil {
		return false
	}
	e.leave(w)
	if w.isPrepared {
		e.cfg.Mounts.Release(w.spec)
	}
	e.work.Go(w.ports.close)
	e.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), removalLimit)
		defer cancel()
		if err := e.removeTmp(ctx, w.spec.tmpName()); err != nil {
			e.cfg.Log.Warn().Err(err).Msg("cannot remove a volume")
		}
	})
	return true
}

// expelProcess ends the container of a process in which something hidden would be seen.
func (e *Executor) expelProcess(fingerprint Fingerprint) {
	e.mu.Lock()
	var id string
	for _, w := range e.processes {
		if w.fingerprint == fingerprint {
			id = w.id
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
