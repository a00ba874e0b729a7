package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Calls find their container by its Spec's fingerprint. So does what waits in the pool.

// maxCommands is how many commands may run, or wait to run, in one container. An agent takes more, so it refuses none.
const maxCommands = 500

// acquired says what a call met: no container, or a frozen one. thawing is set while its container may still be resuming.
type acquired struct {
	cold, thawed bool
	thawing      *life.Thawing
}

// acquire returns the Spec's container, ready and counted as in use until release. One that was frozen may still be
// resuming. It blocks while the container is being made.
func (e *Executor) acquire(ctx context.Context, spec Spec, token quota.Token) (c *container, got acquired, err error) {
	c, got, err = e.find(ctx, spec, token)
	if err != nil {
		return nil, got, err
	}
	select {
	case <-c.Settled():
	case <-ctx.Done():
		e.release(c)
		return nil, got, context.Cause(ctx)
	}
	if now := c.Now(); now.State > life.Frozen {
		e.release(c)
		if now.Why == nil {
			now.Why = lostError{errLost}
		}
		return nil, got, now.Why
	}
	return c, got, nil
}

// find counts a call in the Spec's container, which it has made, taken over or thawed, if need be.
func (e *Executor) find(ctx context.Context, spec Spec, token quota.Token) (c *container, got acquired, err error) {
	fingerprint := spec.Fingerprint()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, got, fmt.Errorf("cannot run commands: the service is shutting down: %w", cerrdefs.ErrUnavailable)
	}
	var from life.State
	if c = e.calls[fingerprint]; c != nil {
		from, got.thawing, err = c.Join(maxCommands)
	}
	if c == nil || errors.Is(err, life.ErrLeft) {
		got.cold = true
		c = e.add(spec, fingerprint)
		c.token = token
		from, got.thawing, err = c.Join(maxCommands)
		log := e.logOf(ctx)
		e.work.Go(func() { e.make(c, log) })
	}
	if err != nil {
		return nil, got, fmt.Errorf("cannot run a command for user %q: %w", spec.User, err)
	}
	got.thawed = e.woken(c, from, got.thawing)
	return c, got, nil
}

// woken has a container that a call has found frozen resume, or be taken over, and reports whether it is thawed.
func (e *Executor) woken(c *container, from life.State, thawing *life.Thawing) bool {
	if from != life.Frozen {
		return false
	}
	e.freezes.thawed.Add(1)
	if thawing == nil {
		e.work.Go(func() {
			e.host.ForbidSwap(c.ID()) // an earlier service may have given its memory back
			e.takeOver(c)
		})
		return false
	}
	e.publish(c, "idle")
	e.work.Go(func() { e.thaw(c, thawing) })
	return true
}

// add registers a container for calls that is to be made; e.mu is held.
func (e *Executor) add(spec Spec, fingerprint Fingerprint) *container {
	c := e.newContainer(spec, fingerprint, "", false)
	e.all[c], e.calls[fingerprint] = true, c
	e.publish(c, "starting")
	return c
}

// release ends what acquire began.
func (e *Executor) release(c *container) {
	if c.Do(life.Return, nil) == life.Removes {
		e.removeLater(c)
	}
}

// retire removes the containers that match: at once if they are unused, else when their last call returns. A call waits
// for a container that is still being made.
func (e *Executor) retire(match func(*container, life.Now) bool) {
	var unused []*container
	e.mu.Lock()
	for _, c := range e.calls {
		if match(c, c.Now()) && c.Do(life.Retire, nil) == life.Removes {
			unused = append(unused, c)
		}
	}
	e.mu.Unlock()
	for _, c := range unused {
		e.tell(e.ctx, c, Incident{What: "removing container: idle or stale"})
		e.removeLater(c)
	}
}

// Leave removes all containers of a user's calls, with what runs in them, and returns when they are gone or ctx has
// ended.
func (e *Executor) Leave(ctx context.Context, user string) error {
	e.mu.Lock()
	var theirs []*container
	for _, c := range e.calls {
		if c.spec.User == user {
			theirs = append(theirs, c)
		}
	}
	e.mu.Unlock()
	for _, c := range theirs {
		e.expel(c)
	}
	for _, c := range theirs {
		select {
		case <-c.Gone():
		case <-ctx.Done():
			return fmt.Errorf("the containers of user %q do not end: %w", user, context.Cause(ctx))
		}
	}
	return nil
}

// Container describes a warm container.
type Container struct {
	Name        string
	ID          string // empty while it is being made
	User        string // empty in the pool
	Fingerprint Fingerprint
	Runtime     string
	State       string // starting, idle, frozen or busy; in the pool starting or pooled; in events also removed
	Commands    int    // that are running in it
	Since       time.Time
	LastUsed    time.Time
}

// Containers lists this instance's containers of users, by name.
func (e *Executor) Containers() []Container { return e.list(false) }

// Pooled lists this instance's containers that wait for future users, or are being made for them, by name.
func (e *Executor) Pooled() []Container { return e.list(true) }

func (e *Executor) list(pooled bool) []Container {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := make([]Container, 0, len(e.calls))
	for _, c := range e.calls {
		now := c.Now()
		if c.spec.IsPooled() != pooled || now.State >= life.Ended {
			continue
		}
		shown := c.describe(shownAs(now))
		if shown.State != "starting" {
			shown.ID = now.ID
		}
		list = append(list, shown)
	}
	slices.SortFunc(list, func(a, b Container) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// shownAs returns the name under which users see a state.
func shownAs(now life.Now) string {
	switch {
	case now.State < life.Ready:
		return "starting"
	case now.Calls > 0:
		return "busy"
	case now.State == life.Frozen:
		return "frozen"
	default:
		return "idle"
	}
}

// describe describes a container in a state. One that is idle in the pool is pooled.
func (c *container) describe(state string) Container {
	user := c.spec.User
	if c.spec.IsPooled() {
		user = ""
		if state == "idle" {
			state = "pooled"
		}
	}
	now := c.Now()
	return Container{
		Name: c.spec.ContainerName(), User: user, Fingerprint: c.fingerprint,
		Runtime: c.spec.Runtime(), State: state, Commands: now.Calls, Since: c.since, LastUsed: now.LastUsed,
	}
}

// publish publishes the state of a container to callers that may know of its user, and of a pooled one to callers that
// act for everyone.
func (e *Executor) publish(c *container, state string) {
	told := c.describe(state)
	e.cfg.Events.Publish(events.Container, told.User, told)
}
