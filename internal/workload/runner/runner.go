// Package runner runs the durable processes that package process decides about, each in a container
// that is planned as for a call.
package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// processExecutor runs the containers of durable processes. *dockerexec.Executor is one.
type processExecutor interface {
	StartProcess(context.Context, dockerexec.Spec, quota.Token) (dockerexec.ProcessContainer, error)
	Processes(context.Context) ([]dockerexec.ProcessContainer, error)
	StopProcess(ctx context.Context, id string, signal syscall.Signal, grace time.Duration) error
	RemoveProcess(ctx context.Context, id string) error
	InspectProcess(ctx context.Context, id string) (dockerexec.ProcessContainer, error)
	PauseDetached(ctx context.Context, id string) error
	ResumeDetached(ctx context.Context, id string) error
	DialProcess(ctx context.Context, id string, port int) (session.PortConn, error)
	ProcessPorts(ctx context.Context, id string, each func([]int) bool) error
}

// Runner runs durable processes as calls are run, with what their sandboxes hold when they start.
// It implements process.Runner.
type Runner struct {
	planner  *plan.Planner
	executor processExecutor
	tmp      plan.TmpOpener
	trash    *hostfs.Trash
	log      zerolog.Logger
	maxLog   atomic.Int64
	// sandboxes have the processes that run in persistent sandboxes; nil until SetSandboxes.
	sandboxes *persistent.Sandboxes
}

// New returns a Runner. maxLog bounds the log of one process, in bytes, over all of its
// files. trash takes the folders of removed processes.
func New(
	planner *plan.Planner, executor processExecutor, tmp plan.TmpOpener, trash *hostfs.Trash,
	maxLog int64, log zerolog.Logger,
) *Runner {
	r := &Runner{planner: planner, executor: executor, tmp: tmp, trash: trash, log: log}
	r.SetMaxLog(maxLog)
	return r
}

// DropUnread implements process.Runner.
func (r *Runner) DropUnread(user string) error {
	folders, err := r.planner.Files().ProcessDirs()
	for _, folder := range folders {
		if user == "" || strings.HasPrefix(folder, user+"/") {
			err = errors.Join(err, dropLaunch(r.planner.Files().UsersDir(), folder))
		}
	}
	return err
}

// SetMaxLog bounds the logs of the processes that are started from now on.
func (r *Runner) SetMaxLog(bytes int64) { r.maxLog.Store(bytes) }

func (r *Runner) logBounds() launch.Log {
	const files = 4 // older ones
	return launch.Log{MaxBytes: r.maxLog.Load() / (files + 1), Files: files}
}

// Dir implements process.Runner. The container sees that folder, too.
func (r *Runner) Dir(p process.Record) string {
	return r.planner.Files().ProcessDir(p.UserID, p.ID)
}

// Discard implements process.Runner. The folder is removed in the background: what is in it is the
// tenant's.
func (r *Runner) Discard(p process.Record) error {
	return r.trash.Discard(r.Dir(p), r.planner.Files().UserDir(p.UserID))
}

// Start implements process.Runner.
func (r *Runner) Start(ctx context.Context, p process.Record, secrets map[string]string,
	planned *plan.Plan) (_ process.Instance, err error) {
	if p.InSandbox {
		return r.startInside(ctx, p, secrets)
	}
	if planned == nil {
		if planned, err = r.plan(ctx, p); err != nil {
			return process.Instance{}, err
		}
	}
	made := *planned
	if p.LastStartedAt.IsZero() {
		made.Notice = "" // it begins with a new working directory
	}
	token := quota.Token{Name: p.Token} // its bounds are not kept: it has its turns, and is counted
	leaveTmp, err := r.planner.MakeTmpHome(ctx, made, r.tmp, token)
	if err != nil {
		return process.Instance{}, err
	}
	defer leaveTmp()
	made.Spec.Process = dockerexec.Process{ID: p.ID, Dir: r.Dir(p)}
	if err := r.writeLaunch(ctx, p, made.Spec.UID, made.Spec.GID, launch.Launch{
		Version: launch.Version, Log: r.logBounds(), Ready: p.Ready, Note: made.Notice,
		Command: launch.Command{
			Process: specs.Process{Args: p.Argv, Cwd: p.Cwd,
				Env: polls(made.Spec, made.Environment(p.Env, secrets))},
			Shell: p.Command, Login: p.Login,
		},
	}); err != nil {
		return process.Instance{}, err
	}
	started, err := r.executor.StartProcess(ctx, made.Spec, token)
	if err != nil {
		// The file may hold secrets, and was not read.
		return process.Instance{}, errors.Join(err,
			removeIfThere(filepath.Join(r.Dir(p), launch.File)))
	}
	applied, err := json.MarshalIndent(started.Spec, "", "  ")
	if err != nil {
		return process.Instance{}, fmt.Errorf("cannot record what the process runs in: %w", err)
	}
	instance := asInstance(started)
	instance.Applied, instance.Notice, instance.Held = applied, made.Notice, made.Held()
	return instance, nil
}

// polls adds variables by which tools that watch files look for changes once a second, unless the
// environment has them. Under gVisor they hear of none that another container makes.
func polls(spec dockerexec.Spec, env []string) []string {
	if !spec.Platform.GVisor {
		return env
	}
	for _, variable := range []string{
		"CHOKIDAR_USEPOLLING=true", "CHOKIDAR_INTERVAL=1000", // vite, nodemon and many others
		"WATCHPACK_POLLING=1000",                                         // webpack and next
		"WATCHFILES_FORCE_POLLING=true", "WATCHFILES_POLL_DELAY_MS=1000", // uvicorn
	} {
		name, _, _ := strings.Cut(variable, "=")
		if !slices.ContainsFunc(env, func(has string) bool { return strings.HasPrefix(has, name+"=") }) {
			env = append(env, variable)
		}
	}
	return env
}

// plan plans the container of a process with what its sandbox holds now.
func (r *Runner) plan(ctx context.Context, p process.Record) (*plan.Plan, error) {
	box, err := r.planner.Sandboxes().Find(p.SandboxID)
	if err != nil {
		return nil, err
	}
	if box.User.String() != p.UserID {
		return nil, errs.Conflict("sandbox %q belongs to another user now", p.SandboxID)
	}
	call, err := r.planner.Resolve(box, p.Confinement())
	if err != nil {
		return nil, err
	}
	call.Detached = true
	decided, err := r.planner.Decide(call)
	if err != nil {
		return nil, err
	}
	var notice string
	if !p.LastStartedAt.IsZero() {
		notice = r.planner.MakeAnew(ctx, decided, p.Cwd)
	}
	made, err := r.planner.Plan(ctx, decided, false)
	made.Notice = cmp.Or(notice, made.Notice)
	return &made, err
}

func asInstance(c dockerexec.ProcessContainer) process.Instance {
	return process.Instance{Process: c.Process, User: c.Spec.User, Container: c.ID,
		Started: c.Started, PID: c.PID, Running: c.Running}
}

// Instances implements process.Runner.
func (r *Runner) Instances(ctx context.Context) ([]process.Instance, error) {
	found, err := r.executor.Processes(ctx)
	if err != nil {
		return nil, err
	}
	instances, err := r.instancesInside(ctx)
	for _, c := range found {
		instances = append(instances, asInstance(c))
	}
	return instances, err
}

// Stop implements process.Runner.
func (r *Runner) Stop(ctx context.Context, i process.Instance, signal syscall.Signal,
	grace time.Duration) error {
	if container, inside := i.Inside(); inside {
		return r.stopInside(ctx, i, container, signal, grace)
	}
	return r.executor.StopProcess(ctx, i.Container, signal, grace)
}

// Pause implements process.Runner.
func (r *Runner) Pause(ctx context.Context, i process.Instance) error {
	if _, inside := i.Inside(); inside {
		return nil // the sandbox is paused
	}
	return r.executor.PauseDetached(ctx, i.Container)
}

// Resume implements process.Runner.
func (r *Runner) Resume(ctx context.Context, i process.Instance) error {
	if _, inside := i.Inside(); inside {
		return nil // the sandbox is resumed
	}
	return r.executor.ResumeDetached(ctx, i.Container)
}

// Remove implements process.Runner.
func (r *Runner) Remove(ctx context.Context, i process.Instance) error {
	if container, inside := i.Inside(); inside {
		return r.stopInside(ctx, i, container, syscall.SIGKILL, killLimit)
	}
	return r.executor.RemoveProcess(ctx, i.Container)
}

// Exit implements process.Runner. It reports the end as Docker saw it, and what the process's first
// program says if that fits.
func (r *Runner) Exit(ctx context.Context, i process.Instance) (process.Exit, error) {
	if container, inside := i.Inside(); inside {
		return r.exitInside(i, container)
	}
	ended, err := r.executor.InspectProcess(ctx, i.Container)
	if err != nil {
		return process.Exit{}, err
	}
	exit := process.Exit{Code: ended.ExitCode, OOM: ended.OOM, Reason: ended.Why, At: ended.Ended}
	state, err := readState(ended.Spec.Process.Dir)
	switch {
	case err == nil && !state.EndedAt.IsZero():
		exit.Lost = uint64(state.Lost)
		exit.OOM = ended.OOM ||
			state.OutOfMemory && ended.ExitCode == 128+int(unix.SIGKILL)
		if signal := unix.SignalNum(state.Signal); signal != 0 &&
			ended.ExitCode == 128+int(signal) {
			exit.Signal = signal
		}
	case ended.ExitCode == 128+int(unix.SIGKILL):
		exit.Signal = unix.SIGKILL // the first program had no time to say anything
	}
	if exit.OOM {
		exit.Reason = ended.Spec.Platform.Limits.OutOfMemory().Error()
	}
	if exit.Reason != "" {
		if err := noteInLog(ended.Spec.Process.Dir, exit.Reason); err != nil {
			r.log.Warn().Err(err).Str("process", i.Process).
				Msg("cannot write to the log of a process why it has ended")
		}
	}
	return exit, nil
}

// Readiness implements process.Runner.
func (r *Runner) Readiness(p process.Record) process.Readiness {
	state, err := readState(r.Dir(p))
	switch {
	case err == nil && state.Ready != nil:
		return *state.Ready
	case err == nil || errors.Is(err, os.ErrNotExist):
		return process.Readiness{Message: "it has not been checked yet"}
	default:
		return process.Readiness{Message: "cannot read what the process reports about itself"}
	}
}

// Dial implements process.Runner.
func (r *Runner) Dial(ctx context.Context, i process.Instance, port int) (process.Conn, error) {
	if container, inside := i.Inside(); inside {
		return r.executor.DialProcess(ctx, container, port)
	}
	return r.executor.DialProcess(ctx, i.Container, port)
}

// Ports implements process.Runner. The ports of a process that runs inside its sandbox are not told:
// they could be those of anything else there.
func (r *Runner) Ports(ctx context.Context, i process.Instance, each func([]int) bool) error {
	if _, inside := i.Inside(); inside {
		return errors.New("it runs inside its sandbox, beside others")
	}
	return r.executor.ProcessPorts(ctx, i.Container, each)
}
