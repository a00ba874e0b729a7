package runner

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// A process may run inside its sandbox, if that is persistent: with all that the sandbox holds,
// beside the sandbox's calls. Its directory is as that of any other. What is in it says which
// container a process runs in, since when, and how it has ended, and the container says when.

// SetSandboxes says who has the persistent sandboxes. It is called before the Runner is used.
func (r *Runner) SetSandboxes(s *persistent.Sandboxes) { r.sandboxes = s }

// killLimit is how long a process inside a sandbox may take to be killed.
const killLimit = 10 * time.Second

// startInside is Start inside a persistent sandbox.
func (r *Runner) startInside(ctx context.Context, p process.Record,
	secrets map[string]string) (_ process.Instance, err error) {
	box, err := r.planner.Sandboxes().Find(p.SandboxID)
	switch {
	case err != nil:
		return process.Instance{}, err
	case box.User.String() != p.UserID:
		return process.Instance{}, errs.Conflict("sandbox %q belongs to another user now",
			p.SandboxID)
	case !box.Persistent:
		return process.Instance{}, errs.Conflict("sandbox %q is not persistent any more",
			p.SandboxID)
	}
	made, err := r.planner.PlanHeld(ctx, box, "", true)
	if err != nil {
		return process.Instance{}, err
	}
	launchFile := filepath.Join(r.Dir(p), launch.File)
	defer func() {
		if err != nil { // it may hold secrets, and was not read
			err = errors.Join(err, removeIfThere(launchFile))
		}
	}()
	container, err := r.sandboxes.StartProcess(ctx, box, quota.Token{Name: p.Token}, p.ID,
		func(container string, env map[string]string) error {
			return r.writeLaunch(ctx, p, made.Spec.UID, made.Spec.GID, launch.Launch{
				Version: launch.Version, Log: r.logBounds(), Ready: p.Ready, In: container,
				Command: launch.Command{
					Process: specs.Process{Args: p.Argv, Cwd: p.Cwd,
						Env: plan.Join(env, p.Env, secrets)},
					Shell: p.Command, Login: p.Login,
				},
			})
		})
	if err != nil {
		return process.Instance{}, err
	}
	state, err := readState(r.Dir(p))
	switch {
	case err == nil && state.StartedAt.IsZero() && state.Fault != "":
		return process.Instance{}, errs.Invalid("cannot run the process: %s", state.Fault)
	case err != nil || state.StartedAt.IsZero(): // its end could not be told from another's
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), killLimit)
		defer cancel()
		return process.Instance{}, errors.Join(
			errs.Redact(ctx, r.log, "cannot tell whether the process has started",
				errors.Join(err, errors.New("it has not said"))),
			r.sandboxes.StopProcess(stop, container, p.ID, syscall.SIGKILL, killLimit))
	}
	return process.Instance{Process: p.ID, User: p.UserID,
		Container: process.InsideOf(container, p.ID), Started: state.StartedAt, Running: true,
		Held: made.Call.Held()}, nil // its names may be changed while it runs
}

// instancesInside returns the processes inside persistent sandboxes. Those that run are followed
// from here on.
func (r *Runner) instancesInside(ctx context.Context) (list []process.Instance, _ error) {
	if r.sandboxes == nil {
		return nil, nil
	}
	containers, err := r.sandboxes.ProcessContainers(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range containers {
		folders, err := os.ReadDir(c.Spec.Process.Dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errs.Redact(ctx, r.log, "cannot list the folders of processes", err)
		}
		for _, folder := range folders {
			state, err := readState(filepath.Join(c.Spec.Process.Dir, folder.Name()))
			if err != nil && !isNone(err) {
				return nil, errs.Redact(ctx, r.log, "cannot read what a process says", err)
			}
			if err != nil || state.In != c.ID || state.StartedAt.IsZero() {
				continue
			}
			i := process.Instance{Process: folder.Name(), User: c.Spec.User,
				Container: process.InsideOf(c.ID, folder.Name()), Started: state.StartedAt,
				Running: c.Running && state.EndedAt.IsZero()}
			if list = append(list, i); i.Running {
				r.sandboxes.FollowProcess(c.ID, i.Process)
			}
		}
	}
	return list, nil
}

// isNone reports whether a process has left no state, or nothing that is one.
func isNone(err error) bool {
	var failed syscall.Errno
	return !errors.As(err, &failed) || errors.Is(err, fs.ErrNotExist) ||
		errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)
}

// exitInside is Exit inside a persistent sandbox.
func (r *Runner) exitInside(i process.Instance, container string) (process.Exit, error) {
	dir := r.planner.Files().ProcessDir(i.User, i.Process)
	state, err := readState(dir)
	if err != nil && !isNone(err) {
		return process.Exit{}, err
	}
	if err == nil && state.StartedAt.Equal(i.Started) && !state.EndedAt.IsZero() {
		return process.Exit{Code: state.ExitCode, Signal: unix.SignalNum(state.Signal),
			OOM: state.OutOfMemory, At: state.EndedAt, Lost: uint64(state.Lost)}, nil
	}
	found := r.sandboxes.Exhausted(container)
	if found == nil {
		return process.Exit{}, cerrdefs.ErrNotFound
	}
	exit := process.Exit{Signal: unix.SIGKILL, OOM: true, Reason: found.Error()}
	if err := noteInLog(dir, exit.Reason); err != nil {
		r.log.Warn().Err(err).Str("process", i.Process).
			Msg("cannot write to the log of a process why it has ended")
	}
	return exit, nil
}

// stopInside is Stop inside a persistent sandbox. What is known to have ended is left alone, and
// with it a sandbox that is paused.
func (r *Runner) stopInside(ctx context.Context, i process.Instance, container string,
	signal syscall.Signal, grace time.Duration) error {
	state, err := readState(r.planner.Files().ProcessDir(i.User, i.Process))
	if err == nil && state.StartedAt.Equal(i.Started) && !state.EndedAt.IsZero() {
		return nil
	}
	return r.sandboxes.StopProcess(ctx, container, i.Process, signal, grace)
}
