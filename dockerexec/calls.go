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

// maxCommands is how many commands may run, or wait to run, in one container. An agent takes more,
// so it refuses none.
const maxCommands = 500

// acquired says what a call met: no container, or a frozen one. thawing is set while its container
// may still be resuming.
type acquired struct {
	cold, thawed bool
	thawing      *life.Thawing
}

// acquire returns the Spec's container, ready and counted as in use until release. One that was
// frozen may still be resuming. It blocks while the container is being made.
func (w *warm) acquire(ctx context.Context, spec Spec,
	token quota.Token) (c *container, got acquired, err error) {
	c, got, err = w.find(ctx, spec, token)
	if err != nil {
		return nil, got, err
	}
	select {
	case <-c.Settled():
	case <-ctx.Done():
		w.release(c)
		return nil, got, context.Cause(ctx)
	}
	if now := c.Now(); now.State > life.Frozen {
		w.release(c)
		if now.Why == nil {
			now.Why = lostError{errLost}
		}
		return nil, got, now.Why
	}
	return c, got, nil
}

// find counts a call in the Spec's container, which it has made, taken over or thawed, if need be.
func (w *warm) find(ctx context.Context, spec Spec,
	token quota.Token) (c *container, got acquired, err error) {
	fingerprint := spec.Fingerprint()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, got, fmt.Errorf("cannot run commands: the service is shutting down: %w",
			cerrdefs.ErrUnavailable)
	}
	var from life.State
	if c = w.calls[fingerprint]; c != nil {
		from, got.thawing, err = c.Join(maxCommands)
	}
	if c == nil || errors.Is(err, life.ErrLeft) {
		got.cold = true
		c = w.add(spec, fingerprint)
		c.token = token
		from, got.thawing, err = c.Join(maxCommands)
		log := w.logOf(ctx)
		w.work.Go(func() { w.make(c, log) })
	}
	if err != nil {
		return nil, got, fmt.Errorf("cannot run a command for user %q: %w", spec.User, err)
	}
	got.thawed = w.woken(c, from, got.thawing)
	return c, got, nil
}

// woken has a container that a call has found frozen resume, or be taken over, and reports whether
// it is thawed.
func (w *warm) woken(c *container, from life.State, thawing *life.Thawing) bool {
	if from != life.Frozen {
		return false
	}
	w.freezes.thawed.Add(1)
	if thawing == nil {
		w.work.Go(func() {
			w.cgroups.ForbidSwap(c.ID()) // an earlier service may have given its memory back
			w.takeOver(c)
		})
		return false
	}
	w.publish(c, "idle")
	w.work.Go(func() { w.thaw(c, thawing) })
	return true
}

// add registers a container for calls that is to be made; e.mu is held.
func (h *host) add(spec Spec, fingerprint Fingerprint) *container {
	c := h.newContainer(spec, fingerprint, "", false)
	h.all[c], h.calls[fingerprint] = true, c
	h.publish(c, "starting")
	return c
}

// release ends what acquire began.
func (w *warm) release(c *container) {
	if c.Do(life.Return, nil) == life.Removes {
		w.removeLater(c)
	}
}

// retire removes the containers that match: at once if they are unused, else when their last call
// returns. A call waits for a container that is still being made.
func (h *host) retire(match func(*container, life.Now) bool) {
	var unused []*container
	h.mu.Lock()
	for _, c := range h.calls {
		if match(c, c.Now()) && c.Do(life.Retire, nil) == life.Removes {
			unused = append(unused, c)
		}
	}
	h.mu.Unlock()
	for _, c := range unused {
		h.tell(h.ctx, c, Incident{What: "removing container: idle or stale"})
		h.removeLater(c)
	}
}

// Leave removes all containers of a user's calls, with what runs in them, and returns when they are
// gone or ctx has ended.
func (w *warm) Leave(ctx context.Context, user string) error {
	w.mu.Lock()
	var theirs []*container
	for c := range w.all {
		if c.spec.User == user && !c.spec.isDetached() && !c.is(life.Gone) {
			theirs = append(theirs, c)
		}
	}
	w.mu.Unlock()
	for _, c := range theirs {
		w.expel(c)
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

// Summary describes a container for calls, or one that waits in the pool.
type Summary struct {
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
func (w *warm) Containers() []Summary { return w.list(false) }

// Pooled lists this instance's containers that wait for future users, or are being made for them,
// by name.
func (w *warm) Pooled() []Summary { return w.list(true) }

func (w *warm) list(pooled bool) []Summary {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]Summary, 0, len(w.calls))
	for _, c := range w.calls {
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
	slices.SortFunc(list, func(a, b Summary) int { return strings.Compare(a.Name, b.Name) })
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
func (c *container) describe(state string) Summary {
	user := c.spec.User
	if c.spec.IsPooled() {
		user = ""
		if state == "idle" {
			state = "pooled"
		}
	}
	now := c.Now()
	return Summary{
		Name: c.spec.ContainerName(), User: user, Fingerprint: c.fingerprint,
		Runtime: c.spec.Runtime(), State: state, Commands: now.Calls, Since: c.since,
		LastUsed: now.LastUsed,
	}
}

// publish publishes the state of a container to callers that may know of its user, and of a pooled
// one to callers that act for everyone.
func (h *host) publish(c *container, state string) {
	told := c.describe(state)
	h.cfg.Events.Publish(events.Container, told.User, told)
}
