package process

import (
	"context"
	"syscall"
	"time"

	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/registry"
)

// View carries out calls about processes, which name the sandbox and mean all processes of its
// user. What is not its callers' does not exist in it.
type View struct {
	manager   *Manager
	sandboxes *registry.Registry // those that the callers may name
	users     ids.Users          // for whom they act
}

// NewView returns a View of all processes.
func NewView(m *Manager, sandboxes *registry.Registry) *View {
	return &View{m, sandboxes, ids.Everyone()}
}

// Scoped returns the View of callers who may name some sandboxes, of some users.
func (v *View) Scoped(sandboxes *registry.Registry, users ids.Users) *View {
	return &View{v.manager, sandboxes, users}
}

// ofUser calls do for a sandbox's user.
func ofUser[Answer any](v *View, id string,
	do func(user string) (Answer, error)) (none Answer, _ error) {
	box, err := v.sandboxes.Find(id)
	if err != nil {
		return none, err
	}
	return do(box.User.String())
}

// Processes lists the processes of the sandbox's user, in the order of their creation.
func (v *View) Processes(id string) ([]Record, error) {
	return ofUser(v, id, func(user string) ([]Record, error) {
		return v.manager.List(user), nil
	})
}

// AllProcesses lists the processes of all users for whom its callers act, in the order of
// their creation.
func (v *View) AllProcesses() []Record { return v.manager.ListOf(v.users.HasName) }

// Process finds a process of the sandbox's user. It does not find another user's.
func (v *View) Process(id, processID string) (Record, error) {
	return ofUser(v, id, func(user string) (Record, error) {
		return v.manager.Get(user, processID)
	})
}

// WaitProcess waits for a process's end or, with ready, for its readiness, but no longer than
// limit; inTime says whether that came. It returns the process as it is then.
func (v *View) WaitProcess(ctx context.Context, id, processID string, ready bool,
	limit time.Duration) (r Record, inTime bool, _ error) {
	box, err := v.sandboxes.Find(id)
	if err != nil {
		return r, false, err
	}
	return v.manager.Wait(ctx, box.User.String(), processID, ready, limit)
}

// StopProcess ends a process with a signal, for good: it is not started again. It blocks until all
// of it has ended.
func (v *View) StopProcess(ctx context.Context, id, processID string,
	signal syscall.Signal) (Record, error) {
	return ofUser(v, id, func(user string) (Record, error) {
		return v.manager.Stop(ctx, user, processID, signal)
	})
}

// StopProcesses ends all processes of the sandbox's user, with SIGTERM.
func (v *View) StopProcesses(ctx context.Context, id string) ([]Record, error) {
	return ofUser(v, id, func(user string) ([]Record, error) {
		return v.manager.StopAll(ctx, user)
	})
}

// RemoveProcess ends a process and forgets it, with its log.
func (v *View) RemoveProcess(ctx context.Context, id, processID string) error {
	box, err := v.sandboxes.Find(id)
	if err != nil {
		return err
	}
	return v.manager.Remove(ctx, box.User.String(), processID)
}

// ReadProcessLog returns the end or the beginning of a process's log.
func (v *View) ReadProcessLog(_ context.Context, id, processID string,
	q LogQuery) (LogPart, error) {
	log, err := v.openLog(id, processID)
	if err != nil {
		return LogPart{}, err
	}
	defer log.Close()
	return log.Read(q)
}

// FollowProcessLog passes the end of a process's log to each, or with First all of it, and then
// more as it comes. It returns nil when the process has ended for good and all was passed on, or
// else each's error, or the cause of ctx's end.
func (v *View) FollowProcessLog(ctx context.Context, id, processID string, q LogQuery,
	each func(LogPart) error) error {
	log, err := v.openLog(id, processID)
	if err != nil {
		return err
	}
	defer log.Close()
	var part LogPart
	if !q.First {
		part, err = log.Read(q)
	}
	if err != nil {
		return err
	}
	if len(part.Data) > 0 {
		if err := each(part); err != nil {
			return err
		}
	}
	return log.Follow(ctx, each)
}

func (v *View) openLog(id, processID string) (*Log, error) {
	return ofUser(v, id, func(user string) (*Log, error) {
		return v.manager.Log(user, processID)
	})
}
