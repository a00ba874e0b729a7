package runner

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/errs"
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

// inside returns the identity of a run inside a container, and isInside the container of one.
func inside(container, id string) string { return container + "/" + id }

func isInside(i process.Instance) (container string, is bool) {
	return strings.CutSuffix(i.Container, "/"+i.Process)
}

// startInside is Start inside a persistent sandbox.
func (r *Runner) startInside(ctx context.Context, p process.Record,
	secrets map[string]string) (process.Instance, error) {
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
	container, err := r.sandboxes.StartProcess(ctx, box, quota.Token{Name: p.Token}, p.ID,
		func(container string) error {
			return r.writeLaunch(ctx, p, made.Spec.UID, made.Spec.GID, launch.Launch{
				Version: launch.Version, Log: r.logBounds(), Ready: p.Ready, In: container,
				Command: launch.Command{
					Process: specs.Process{Args: p.Argv, Cwd: p.Cwd,
						Env: made.Environment(p.Env, secrets)},
					Shell: p.Command, Login: p.Login,
				},
			})
		})
	if err != nil {
		// The file may hold secrets, and was not read.
		return process.Instance{}, errors.Join(err,
			removeIfThere(filepath.Join(r.Dir(p), launch.File)))
	}
	state, err := readState(r.Dir(p))
	if err == nil && state.Fault != "" && state.StartedAt.IsZero() {
		err = errs.Invalid("cannot run the process: %s", state.Fault)
	}
	if err != nil {
		return process.Instance{}, err
	}
	return process.Instance{Process: p.ID, User: p.UserID, Container: inside(container, p.ID),
		Started: state.StartedAt, Running: true}, nil
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
			if err != nil || state.In != c.ID || state.StartedAt.IsZero() {
				continue
			}
			i := process.Instance{Process: folder.Name(), User: c.Spec.User,
				Container: inside(c.ID, folder.Name()), Started: state.StartedAt,
				Running: c.Running && state.EndedAt.IsZero()}
			if list = append(list, i); i.Running {
				r.sandboxes.FollowProcess(c.ID, i.Process)
			}
		}
	}
	return list, nil
}

// exitInside is Exit inside a persistent sandbox.
func (r *Runner) exitInside(i process.Instance) (process.Exit, error) {
	state, err := readState(r.planner.Files().ProcessDir(i.User, i.Process))
	if err != nil || state.EndedAt.IsZero() || !state.StartedAt.Equal(i.Started) {
		return process.Exit{}, errors.Join(err, cerrdefs.ErrNotFound)
	}
	exit := process.Exit{Code: state.ExitCode, OOM: state.OutOfMemory, At: state.EndedAt,
		Lost: uint64(state.Lost)}
	exit.Signal = unix.SignalNum(state.Signal)
	return exit, nil
}
