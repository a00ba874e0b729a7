package dockerexec

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/cgroup"
)

// Limit is a limit of containers, by the name of its setting.
type Limit string

// The limits that end a command, or keep it from going on.
const (
	LimitMemory Limit = "limits.memory"
	LimitPids   Limit = "limits.pids"
)

// Exhausted says that a command's container had nothing left of a limit.
type Exhausted struct {
	Limit Limit
	Value int64 // of the limit: bytes, or processes and threads
}

// Error implements error, because some calls end by it. All who tell of it say it in these words.
func (x Exhausted) Error() string {
	if x.Limit == LimitMemory {
		return fmt.Sprintf("out of memory: this container may use %s (%s), its tmpfs included",
			x.Amount(), x.Limit)
	}
	return fmt.Sprintf("out of processes: this container may have %s (%s)", x.Amount(), x.Limit)
}

// Amount returns the value of the limit for people.
func (x Exhausted) Amount() string {
	if x.Limit == LimitMemory {
		return SizeText(x.Value)
	}
	return fmt.Sprint(x.Value, " processes and threads")
}

// Unwrap returns the class of the error.
func (Exhausted) Unwrap() error { return cerrdefs.ErrResourceExhausted }

// SizeText returns a number of bytes as the settings have it.
func SizeText(bytes int64) string {
	for i, unit := range []string{"Gi", "Mi", "Ki"} {
		if of := int64(1) << (30 - 10*i); bytes%of == 0 && bytes > 0 {
			return fmt.Sprint(bytes/of, unit)
		}
	}
	return fmt.Sprint(bytes)
}

// exhausted returns what a container with these limits has used up, according to counts of before
// and now; nil for nothing.
func (l Limits) exhausted(before, now cgroup.Refusals) *Exhausted {
	switch {
	case now.Killed > before.Killed:
		return l.OutOfMemory()
	case now.Pids > before.Pids:
		return l.OutOfProcesses()
	}
	return nil
}

// OutOfProcesses returns what is said of a container that could start no more processes or threads.
func (l Limits) OutOfProcesses() *Exhausted { return &Exhausted{LimitPids, l.Pids} }

// OutOfMemory returns what is said of a container that has used up its memory.
func (l Limits) OutOfMemory() *Exhausted { return &Exhausted{LimitMemory, l.Memory} }

// CountRefusals notes what a container was refused so far, so that it is not told again, and
// returns what is new; nil for nothing.
func (e *Executor) CountRefusals(c *Container) (*Exhausted, error) {
	now, err := e.cgroups.Refusals(c.ID())
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	before := c.refused
	c.refused = now
	return c.spec.Platform.Limits.exhausted(before, now), nil
}

// learnEnd finds out whether a container that no longer works has used up a limit, before anything
// of it is removed. Under gVisor it has ended then, because the kernel kills all of gVisor's.
func (e *Executor) learnEnd(c *Container) {
	defer close(c.learned)
	if c.ID() == "" {
		return
	}
	found, err := e.CountRefusals(c)
	if err != nil { // its control group is gone, or on another host
		found = e.reason(c.ID())
	}
	c.exhausted = found
}

// reason returns what was learned of the end of a container whose control group is gone, or else
// what Docker knows of it.
func (e *Executor) reason(id string) *Exhausted {
	if found := e.watchedEnd(e.ctx, id); found != nil {
		return found
	}
	return e.dockersReason(e.ctx, id)
}

// dockersReason returns what Docker knows of a container's end. Docker may notice it later.
func (e *Executor) dockersReason(ctx context.Context, id string) *Exhausted {
	ctx, cancel := context.WithTimeout(ctx, endingLag)
	defer cancel()
	now, err := e.InspectProcess(ctx, id)
	if err == nil && now.Running && unix.Kill(now.PID, 0) != unix.ESRCH {
		return nil
	}
	if err == nil && now.Running {
		doneWithin(e.engine.Wait(ctx, id), endingLag)
		now, err = e.InspectProcess(ctx, id)
	}
	if err != nil || !now.OOM {
		return nil
	}
	return now.Spec.Platform.Limits.OutOfMemory()
}

// PersistentEnd returns the limit that has ended a persistent container; nil if it has not ended,
// or otherwise. It waits for a moment until Docker has noticed the end.
func (e *Executor) PersistentEnd(ctx context.Context, id string) *Exhausted {
	// under gVisor the kernel kills all of it
	if c := e.runningDetached(id); c != nil && c.spec.Platform.GVisor {
		if now, err := e.cgroups.Refusals(id); err == nil && now.Killed > 0 {
			return c.spec.Platform.Limits.OutOfMemory()
		}
	}
	return e.dockersReason(ctx, id)
}

// PersistentKilled returns what a persistent container that goes on is out of, if programs in it
// were killed for that since it was asked last; nil if none were.
func (e *Executor) PersistentKilled(id string) *Exhausted {
	c := e.runningDetached(id)
	if c == nil {
		return nil
	}
	found, err := e.CountRefusals(c)
	if err != nil || found == nil || found.Limit != LimitMemory {
		return nil
	}
	return found
}

// why returns what has ended a container, once that is learned; empty if it is not known.
func (c *Container) why() string {
	if c.exhausted == nil {
		return ""
	}
	return c.exhausted.Error()
}

// learnLimit is how long a call whose container was lost waits to be told why.
const learnLimit = endingLag + endingLag/2

// Exhausted returns the limit that a container which was lost had used up; nil if there is none, or
// it is not known.
func (c *Container) Exhausted(ctx context.Context) *Exhausted {
	ctx, cancel := context.WithTimeout(ctx, learnLimit)
	defer cancel()
	select {
	case <-c.learned:
	case <-c.Gone(): // it may have been removed for another reason
	case <-ctx.Done():
	}
	select {
	case <-c.learned:
		return c.exhausted
	default:
		return nil
	}
}
