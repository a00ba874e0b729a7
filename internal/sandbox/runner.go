package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/agent/creds"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/process"
)

// ProcessExecutor runs the containers of durable processes. *dockerexec.Executor is one.
type ProcessExecutor interface {
	StartProcess(context.Context, dockerexec.Spec) (dockerexec.ProcessContainer, error)
	Processes(context.Context) ([]dockerexec.ProcessContainer, error)
	StopProcess(ctx context.Context, id string, signal syscall.Signal, grace time.Duration) error
	RemoveProcess(ctx context.Context, id string) error
	ProcessExit(ctx context.Context, id string) (dockerexec.ProcessExit, error)
	DialProcess(ctx context.Context, id string, port int) (dockerexec.PortConn, error)
}

// Runner runs durable processes as calls are run, by what their sandboxes hold when they start. It is a
// process.Runner.
type Runner struct {
	service  *Service
	executor ProcessExecutor
	trash    *hostfs.Trash
	maxLog   atomic.Int64
}

// NewRunner makes a Runner. maxLog bounds the log of one process, in bytes, over all of its files. trash takes the
// folders of processes that are removed; who made it has it work.
func NewRunner(service *Service, executor ProcessExecutor, trash *hostfs.Trash, maxLog int64) *Runner {
	r := &Runner{service: service, executor: executor, trash: trash}
	r.SetMaxLog(maxLog)
	return r
}

// SetMaxLog bounds the logs of the processes that are started from now on.
func (r *Runner) SetMaxLog(bytes int64) { r.maxLog.Store(bytes) }

func (r *Runner) log() launch.Log {
	const files = 4 // older ones
	return launch.Log{MaxBytes: r.maxLog.Load() / (files + 1), Files: files}
}

// Dir is a process's folder on the host, which its container has, too. It lies beside the user's home, on
// the same disk: what fills it is the tenant's own.
func (r *Runner) Dir(p process.Record) string {
	return filepath.Join(r.service.cfg().UsersDir, p.UserID, processesDir, p.ID)
}

// Discard takes a process's folder away. What is in it is the tenant's, and goes in the background.
func (r *Runner) Discard(p process.Record) error {
	return r.trash.Discard(r.Dir(p), filepath.Join(r.service.cfg().UsersDir, p.UserID))
}

// DropLaunches removes what a service that was killed had laid for processes and nobody has read: it may hold
// secrets. It is called before anything is started.
func (r *Runner) DropLaunches() error {
	users := r.service.cfg().UsersDir
	folders, err := filepath.Glob(filepath.Join(hostfs.EscapeGlob(users), "*", processesDir, "*"))
	for _, folder := range folders {
		err = errors.Join(err, dropLaunch(users, strings.TrimPrefix(folder, users+"/")))
	}
	return err
}

// dropLaunch removes launch.json from a process's folder below users, without following a link. What a tenant has
// put there under the name is left, if it is no file.
func dropLaunch(users, folder string) error {
	fd, err := openBelow(users, folder)
	if err != nil {
		return nil // no process's
	}
	defer unix.Close(fd)
	err = unix.Unlinkat(fd, launch.File, 0)
	if err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EISDIR) {
		return nil
	}
	return fmt.Errorf("cannot remove what was to be run: %w", err)
}

// processesDir is the directory of a user's folder that holds those of processes.
const processesDir = "processes"

// Start is for process.Runner.
func (r *Runner) Start(ctx context.Context, p process.Record, secrets map[string]string) (_ process.Instance, err error) {
	box, err := r.service.Get(p.SandboxID)
	if err != nil {
		return process.Instance{}, err
	}
	if box.User.id != p.UserID {
		return process.Instance{}, errs.Conflict("sandbox %q is another user's now", p.SandboxID)
	}
	made, err := r.service.plan(ctx, box, ask{tags: p.Grants, home: p.Home, domains: p.AllowedDomains, managers: p.PackageManagers, less: Restrictions(p.Restrictions)})
	if err != nil {
		return process.Instance{}, err
	}
	if err := r.service.makeTmpHome(ctx, made); err != nil {
		return process.Instance{}, err
	}
	made.spec.Process = dockerexec.Process{ID: p.ID, Dir: r.Dir(p)}
	if err := r.lay(ctx, p, made, launch.Launch{
		Version: launch.Version, Argv: p.Argv, Shell: p.Command, Login: p.Login, Cwd: p.Cwd, Log: r.log(),
		Env:   made.environment(p.Env, secrets),
		Ready: readyCheck(p.Ready),
	}); err != nil {
		return process.Instance{}, err
	}
	started, err := r.executor.StartProcess(ctx, made.spec)
	if err != nil {
		// It may hold secrets, and nobody has read it.
		return process.Instance{}, errors.Join(err, removeIfThere(filepath.Join(r.Dir(p), launch.File)))
	}
	applied, err := json.MarshalIndent(started.Spec, "", "  ")
	if err != nil {
		return process.Instance{}, fmt.Errorf("cannot write down what the process runs in: %w", err)
	}
	instance := asInstance(started)
	instance.Applied = applied
	return instance, nil
}

func readyCheck(r *process.Ready) *launch.Ready {
	if r == nil {
		return nil
	}
	return &launch.Ready{Shell: r.Command, Port: r.Port, IntervalMs: r.IntervalMs, TimeoutMs: r.TimeoutMs}
}

// lay makes the folder of a process, its agent's, with what is to be run.
func (r *Runner) lay(ctx context.Context, p process.Record, made plan, l launch.Launch) error {
	if err := l.Validate(); err != nil {
		return errs.Invalid("cannot run the process: %v", err)
	}
	text, err := json.Marshal(l)
	if err != nil {
		return errs.Invalid("cannot run the process: %v", err)
	}
	if len(text) > launch.MaxSize {
		return errs.Invalid("cannot run the process: its command and environment are larger than %d bytes", launch.MaxSize)
	}
	dir := r.Dir(p)
	fail := func(err error) error {
		return r.service.hidden(ctx, "cannot make the folder of the process", err)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil {
		return fail(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fail(err)
	}
	// What is in the folder comes from a container: nothing in it is gone through by a name that could be a link.
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_RDONLY, 0)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	uid, gid := int(creds.Agent(made.spec.UID)), int(made.spec.GID)
	if err := errors.Join(unix.Fchown(fd, uid, gid), takeLogs(fd, made.spec.UID, uid, l.Log.Files)); err != nil {
		return fail(err)
	}
	for _, name := range []string{launch.File, launch.StateFile} {
		if err := unix.Unlinkat(fd, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return fail(fmt.Errorf("%s: %w", name, err))
		}
	}
	to, err := unix.Openat(fd, launch.File, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o400)
	if err != nil {
		return fail(err)
	}
	file := os.NewFile(uintptr(to), launch.File)
	_, err = file.Write(text)
	if err = errors.Join(err, file.Chown(uid, gid), file.Close()); err != nil {
		return fail(errors.Join(err, unix.Unlinkat(fd, launch.File, 0)))
	}
	return nil
}

// takeLogs gives a process's log to its agent, which goes on with it, where it is the tenant's: in folders that an
// earlier version has made.
func takeLogs(dir int, tenant uint32, agent, older int) error {
	for n := range older + 1 {
		name := launch.LogFile
		if n > 0 {
			name = launch.OldLog(n)
		}
		var st unix.Stat_t
		err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) || err == nil && (st.Uid != tenant || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1) {
			continue
		}
		if err == nil {
			err = unix.Fchownat(dir, name, agent, -1, unix.AT_SYMLINK_NOFOLLOW)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func removeIfThere(name string) error {
	if err := os.Remove(name); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func asInstance(c dockerexec.ProcessContainer) process.Instance {
	return process.Instance{Process: c.Process, Container: c.ID, Started: c.Started, PID: c.PID, Running: c.Running}
}

// Instances is for process.Runner, as are Stop, Remove and Exit.
func (r *Runner) Instances(ctx context.Context) ([]process.Instance, error) {
	found, err := r.executor.Processes(ctx)
	if err != nil {
		return nil, err
	}
	instances := make([]process.Instance, len(found))
	for i, c := range found {
		instances[i] = asInstance(c)
	}
	return instances, nil
}

// Stop sends a signal and kills after the grace.
func (r *Runner) Stop(ctx context.Context, i process.Instance, signal syscall.Signal, grace time.Duration) error {
	return r.executor.StopProcess(ctx, i.Container, signal, grace)
}

// Remove takes a container away.
func (r *Runner) Remove(ctx context.Context, i process.Instance) error {
	return r.executor.RemoveProcess(ctx, i.Container)
}

// Exit says how a process has ended: as the engine saw it, and in the words of the first program where
// those fit.
func (r *Runner) Exit(ctx context.Context, i process.Instance) (process.Exit, error) {
	ended, err := r.executor.ProcessExit(ctx, i.Container)
	if err != nil {
		return process.Exit{}, err
	}
	exit := process.Exit{Code: ended.Code, OOM: ended.OOM, At: ended.At}
	state, err := readState(ended.Dir)
	switch {
	case err == nil && !state.EndedAt.IsZero():
		exit.Lost = uint64(state.Lost)
		if signal := unix.SignalNum(state.Signal); signal != 0 && ended.Code == 128+int(signal) {
			exit.Signal = signal
		}
	case ended.Code == 128+int(unix.SIGKILL):
		exit.Signal = unix.SIGKILL // the first program had no time to say anything
	}
	return exit, nil
}

// Readiness is for process.Runner, as is Dial.
func (r *Runner) Readiness(p process.Record) process.Readiness {
	state, err := readState(r.Dir(p))
	switch {
	case err == nil && state.Ready != nil:
		return process.Readiness(*state.Ready)
	case err == nil || errors.Is(err, os.ErrNotExist):
		return process.Readiness{Message: "it has not been checked yet"}
	default:
		return process.Readiness{Message: "what the process says of itself cannot be read"}
	}
}

// Dial connects to a port inside.
func (r *Runner) Dial(ctx context.Context, i process.Instance, port int) (process.Conn, error) {
	return r.executor.DialProcess(ctx, i.Container, port)
}

// readState reads what a process's first program has left.
func readState(dir string) (launch.State, error) {
	fd, err := unix.Open(filepath.Join(dir, launch.StateFile), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return launch.State{}, err
	}
	file := os.NewFile(uintptr(fd), launch.StateFile)
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return launch.State{}, fmt.Errorf("%s is no file", launch.StateFile)
	}
	text, err := io.ReadAll(io.LimitReader(file, launch.MaxStateSize+1))
	if err != nil {
		return launch.State{}, err
	}
	return launch.ParseState(text)
}
