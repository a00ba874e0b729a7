package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// Runner implements process.Runner: its processes run until they are stopped, or a Lab ends them. A
// process's log is what a test writes to it.
type Runner struct {
	// Fault is why nothing can be started, stopped or removed; nil if it can.
	Fault error
	// Secrets are those of the last start, and Signals those that stopped processes, each with the
	// process's id.
	Secrets map[string]string
	Signals []string

	users     string // the folder of all users; set by New
	mu        sync.Mutex
	ended     func(process string) // tells the manager; set by New
	instances []instance
	made      int
}

type instance struct {
	process.Instance
	exit process.Exit
}

// Start implements process.Runner.
func (r *Runner) Start(_ context.Context, p process.Record, secrets map[string]string,
	_ *plan.Plan) (process.Instance, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Fault != nil {
		return process.Instance{}, r.Fault
	}
	if err := os.MkdirAll(filepath.Dir(p.LogPath), 0o700); err != nil {
		return process.Instance{}, err
	}
	r.Secrets = secrets
	r.made++
	i := process.Instance{Process: p.ID, User: p.UserID,
		Container: fmt.Sprintf("c-%s-%d", p.ID, r.made), Started: time.Now(), PID: 4711,
		Running: true}
	r.instances = append(r.instances, instance{Instance: i})
	return i, nil
}

// adopt makes a process run that was started earlier.
func (r *Runner) adopt(p process.Record) process.Identity {
	i := process.Instance{Process: p.ID, User: p.UserID, Container: "c-" + p.ID,
		Started: p.LastStartedAt, PID: p.PID, Running: true}
	r.instances = append(r.instances, instance{Instance: i})
	return process.Identity{Container: i.Container, Started: i.Started}
}

// end makes a process end by itself.
func (r *Runner) end(id string, exit process.Exit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for at, i := range r.instances {
		if i.Process == id && i.Running {
			r.instances[at].Running, r.instances[at].exit = false, exit
		}
	}
	r.ended(id)
}

// Instances implements process.Runner.
func (r *Runner) Instances(context.Context) ([]process.Instance, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []process.Instance
	for _, i := range r.instances {
		list = append(list, i.Instance)
	}
	return list, nil
}

func (r *Runner) find(i process.Instance) int {
	return slices.IndexFunc(r.instances, func(other instance) bool {
		return other.Container == i.Container
	})
}

// Stop implements process.Runner.
func (r *Runner) Stop(_ context.Context, i process.Instance, signal syscall.Signal,
	_ time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Fault != nil {
		return r.Fault
	}
	r.Signals = append(r.Signals, signal.String()+" "+i.Process)
	if at := r.find(i); at >= 0 && r.instances[at].Running {
		r.instances[at].Running, r.instances[at].exit = false,
			process.Exit{Signal: signal, At: time.Now()}
	}
	return nil
}

// Pause implements process.Runner.
func (r *Runner) Pause(context.Context, process.Instance) error { return nil }

// Resume implements process.Runner.
func (r *Runner) Resume(context.Context, process.Instance) error { return nil }

// Remove implements process.Runner.
func (r *Runner) Remove(_ context.Context, i process.Instance) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Fault != nil {
		return r.Fault
	}
	r.instances = slices.DeleteFunc(r.instances, func(other instance) bool {
		return other.Container == i.Container
	})
	return nil
}

// Exit implements process.Runner.
func (r *Runner) Exit(_ context.Context, i process.Instance) (process.Exit, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := r.find(i); at >= 0 {
		return r.instances[at].exit, nil
	}
	return process.Exit{}, cerrdefs.ErrNotFound
}

// Readiness implements process.Runner.
func (r *Runner) Readiness(process.Record) process.Readiness {
	return process.Readiness{Message: "nobody listens", Since: time.Now()}
}

// OpenFiles implements process.Runner.
func (r *Runner) OpenFiles(context.Context, process.Instance, string) ([]string, error) {
	return nil, nil
}

// Dir implements process.Runner.
func (r *Runner) Dir(p process.Record) string {
	return filepath.Join(r.users, p.UserID, "processes", p.ID)
}

// DropUnread implements process.Runner.
func (r *Runner) DropUnread(string) error { return nil }

// Discard implements process.Runner.
func (r *Runner) Discard(p process.Record) error { return os.RemoveAll(r.Dir(p)) }

// Dial implements process.Runner.
func (r *Runner) Dial(context.Context, process.Instance, int) (process.Conn, error) {
	return nil, errors.New("nobody listens")
}

// Ports implements process.Runner.
func (r *Runner) Ports(context.Context, process.Instance, func([]int) bool) error {
	return errors.New("it does not tell")
}
