package persistent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Sandbox is a persistent sandbox, for one caller.
type Sandbox struct {
	entry *entry
	owner quota.Token
	// asleep says that requests do not resume the sandbox, nor start it again if it has moved.
	// Whoever makes them may hold entry.changing.
	asleep bool
}

// State is the state of a sandbox.
type State int

// The states. In StateEnded its container is lost, with its commands and its root filesystem.
const (
	StateRunning State = iota
	StatePaused
	StateEnded
)

// Info describes a sandbox.
type Info struct {
	ID, Template string
	// Owner is the name of the token by which it was made.
	Owner      string
	Metadata   map[string]string // must not be changed
	Note       json.RawMessage
	Started    time.Time
	Deadline   time.Time // zero for none
	OnDeadline OnDeadline
	AutoResume bool
	Root       bool // commands may run as root now
	State      State
	CPUs       float64
	Memory     int64 // bytes
	Network    Network
	// Moved is about the last time that another host started it again from its home alone; nil for
	// never.
	Moved *Moved
}

// ID returns the name of the sandbox, of its user, and of the sandbox that is registered for file
// calls.
func (b *Sandbox) ID() string { return b.entry.id }

// Info returns what is known, without asking Docker or the container.
func (b *Sandbox) Info() Info {
	b.entry.mu.Lock()
	defer b.entry.mu.Unlock()
	return b.entry.info()
}

// info is called with entry.mu held.
func (e *entry) info() Info {
	r := e.record
	return Info{
		ID: r.ID, Template: r.Template, Owner: r.Owner, Metadata: r.Metadata, Note: r.Note,
		Started: r.Started, Deadline: r.Deadline, OnDeadline: r.OnDeadline,
		AutoResume: r.AutoResume, Root: r.Root && e.of.cfg.Planner.AllowsRoot(),
		State: e.state(), CPUs: r.CPUs,
		Memory: r.Memory, Network: r.Network, Moved: r.Moved,
	}
}

// state is called with entry.mu held.
func (e *entry) state() State {
	switch {
	case e.place == here && e.container != "" &&
		(e.exhaustedIn == e.container || !e.of.cfg.Executor.PersistentRuns(e.container)),
		e.place == here && e.container == "" && e.record.Made && e.of.allFound():
		return StateEnded
	case e.record.Paused:
		return StatePaused
	}
	return StateRunning
}

// Owner returns the token by which the sandbox was made, with its present bounds.
func (b *Sandbox) Owner() quota.Token { return b.owner }

// changes calls do with entry.changing held, unless the sandbox is gone.
func (b *Sandbox) changes(do func() error) error {
	b.entry.changing.Lock()
	defer b.entry.changing.Unlock()
	b.entry.mu.Lock()
	gone, of := b.entry.gone, b.entry.record.Of
	b.entry.mu.Unlock()
	switch {
	case gone && of != nil:
		return fmt.Errorf("the container of sandbox %q is being removed: try again: %w", of.ID,
			cerrdefs.ErrUnavailable)
	case gone:
		return errs.NotFound("there is no sandbox %.64q", b.entry.id)
	}
	return do()
}

// SetDeadline sets when the sandbox ends or is paused, sooner or later than before. Zero is never.
func (b *Sandbox) SetDeadline(at time.Time) error {
	return b.changes(func() error { return b.setDeadline(at) })
}

func (b *Sandbox) setDeadline(at time.Time) error {
	return b.entry.change(func(r *record) {
		r.Deadline, r.Length = time.Time{}, 0
		if !at.IsZero() {
			r.Deadline, r.Length = at.UTC(), time.Until(at)
		}
	})
}

// Connect resumes the sandbox if it is paused, and moves its deadline to a later time, never to a
// sooner one.
func (b *Sandbox) Connect(ctx context.Context, at time.Time) error {
	return b.changes(func() error {
		r := b.entry.recorded()
		if at.IsZero() && !r.Deadline.IsZero() || !r.Deadline.IsZero() && at.After(r.Deadline) {
			if err := b.setDeadline(at); err != nil {
				return err
			}
		}
		return b.resume(ctx)
	})
}

// Pause stops all that runs in the sandbox until it is resumed. The error is of class Conflict when
// it is paused already.
func (b *Sandbox) Pause(ctx context.Context) error {
	return b.changes(func() error { return b.pause(ctx, b.entry.change) })
}

// pause pauses the sandbox. record decides whether it does so even if that cannot be recorded.
func (b *Sandbox) pause(ctx context.Context, record func(func(*record)) error) error {
	if b.entry.hasMoved() && b.Info().State == StateRunning {
		return record(paused(true)) // nothing of it runs
	}
	container, already, err := b.container(ctx)
	switch {
	case err != nil:
		return err
	case already:
		return errs.Conflict("sandbox %q is paused already", b.entry.id)
	}
	// In this order, so that a sandbox that is recorded as paused does not run after a crash.
	if err := record(paused(true)); err != nil {
		return err
	}
	if err := b.entry.of.cfg.Executor.PauseDetached(ctx, container); err != nil {
		b.entry.must(paused(false)) // a paused sandbox has no deadline
		b.entry.followLater()
		return err
	}
	return nil
}

// Resume lets a paused sandbox go on. One that is not paused is left as it is.
func (b *Sandbox) Resume(ctx context.Context) error {
	return b.changes(func() error { return b.resume(ctx) })
}

func (b *Sandbox) resume(ctx context.Context) error {
	if b.entry.hasMoved() {
		return b.startAgain(ctx)
	}
	container, sleeps, err := b.container(ctx)
	if err != nil || !sleeps {
		return err
	}
	if err := b.entry.of.cfg.Executor.ResumeDetached(ctx, container); err != nil {
		return fmt.Errorf("cannot resume sandbox %q: %w", b.entry.id, err)
	}
	b.entry.must(resumed) // it runs, so it has its deadline
	b.entry.followLater()
	return nil
}

func resumed(r *record) {
	// Or it would be paused again at once:
	if r.Paused && r.Length > 0 && r.Deadline.Before(time.Now()) {
		r.Deadline = time.Now().Add(r.Length).UTC()
	}
	r.Paused = false
}

func paused(is bool) func(*record) { return func(r *record) { r.Paused = is } }

// container returns the container's id, and looks for it if the service could not ask Docker
// before; it is empty if the sandbox has moved. The error is errEnded if the container is lost.
func (b *Sandbox) container(ctx context.Context) (id string, paused bool, err error) {
	look := func() (string, State) {
		b.entry.mu.Lock()
		defer b.entry.mu.Unlock()
		if b.entry.place == homeOnly { // what is left of an earlier container is of no use
			return "", b.entry.state()
		}
		return b.entry.container, b.entry.state()
	}
	id, state := look()
	if id == "" && !b.entry.hasMoved() {
		if err := b.entry.of.find(ctx); err != nil {
			return "", false, fmt.Errorf("cannot find the container of sandbox %q: %w", b.entry.id,
				err)
		}
		if id, state = look(); id == "" {
			return "", false, errEnded
		}
	}
	if state == StateEnded {
		return "", false, b.entry.endedBy()
	}
	return id, state == StatePaused, nil
}

// endedBy returns the error for a container that is lost: what it is known to be out of, or
// errEnded.
func (e *entry) endedBy() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.container != "" && e.exhaustedIn == e.container {
		return *e.exhausted
	}
	return errEnded
}

// Touch resumes the sandbox if it is paused and may be resumed by a call. The error is of class
// FailedPrecondition if it may not.
func (b *Sandbox) Touch(ctx context.Context) error {
	_, err := b.running(ctx)
	return err
}

// running returns the container of a sandbox that runs, after starting or resuming it if necessary
// and unless the sandbox is asleep.
func (b *Sandbox) running(ctx context.Context) (string, error) {
	if b.asleep && b.entry.hasMoved() {
		return "", fmt.Errorf("sandbox %q has no container until it is used: %w", b.entry.id,
			cerrdefs.ErrFailedPrecondition)
	}
	if err := b.settle(ctx); err != nil {
		return "", err
	}
	id, sleeps, err := b.container(ctx)
	switch {
	case err == nil && id == "" && !sleeps: // it has lost its container just now
		return b.running(ctx)
	case err != nil || !sleeps:
		return id, err
	}
	if b.asleep || !b.entry.recorded().AutoResume {
		return "", fmt.Errorf("sandbox %q is paused: connect to it, or resume it: %w", b.entry.id,
			cerrdefs.ErrFailedPrecondition)
	}
	if err := b.Resume(ctx); err != nil || id != "" {
		return id, err
	}
	return b.running(ctx) // it has another container now
}

// insideTries is how often a call looks again at a sandbox that was paused just when the call came.
const insideTries = 10

// inside calls do, which needs the sandbox's container to run. If the sandbox is paused meanwhile,
// the call resumes it if it may, or is refused.
func inside[T any](ctx context.Context, b *Sandbox,
	do func(container string) (T, error)) (done T, err error) {
	for try := range insideTries {
		container, err := b.running(ctx)
		if err != nil {
			return done, err
		}
		done, err = do(container)
		_, exhausted := errors.AsType[dockerexec.Exhausted](err)
		if exhausted && !b.asleep && try < insideTries-1 { // nothing of the call has begun there
			b.entry.keepHome()
			continue
		}
		if !errors.Is(err, life.ErrPaused) {
			return done, err
		}
	}
	return done, fmt.Errorf("sandbox %q was paused again each time the call reached it: %w",
		b.entry.id, cerrdefs.ErrFailedPrecondition)
}

// Dial connects to a TCP port of the container's own loopback. It blocks until a program there has
// accepted.
func (b *Sandbox) Dial(ctx context.Context, port int) (session.PortConn, error) {
	return inside(ctx, b, func(container string) (session.PortConn, error) {
		return b.entry.of.cfg.Executor.DialProcess(ctx, container, port)
	})
}

// Kill removes the sandbox and all that it has; the home and the registration of a registered one
// stay. When it returns, even with an error, the sandbox is
// gone for callers; what could not be removed is tried again.
func (b *Sandbox) Kill(ctx context.Context) error {
	return b.changes(func() error { return b.entry.remove() })
}

// remove removes a sandbox. Its container goes even if that cannot be recorded; entry.changing is
// held.
func (e *entry) remove() error {
	e.mu.Lock()
	e.gone = true
	r, container := e.record, e.container
	e.mu.Unlock()
	var unrecorded error
	if !r.Removing {
		unrecorded = e.removing()
	}
	ctx, cancel := context.WithTimeout(context.Background(), removalLimit)
	defer cancel()
	if container == "" && !e.of.allFound() {
		if err := e.of.find(ctx); err != nil {
			return err
		}
		e.mu.Lock()
		container = e.container
		e.mu.Unlock()
	}
	if container != "" {
		if err := e.of.cfg.Executor.RemoveProcess(ctx, container); err != nil {
			return err
		}
	}
	e.mu.Lock()
	e.countNoMore()
	e.mu.Unlock()
	e.followLater()
	e.giveBack()           // what is left are files
	if unrecorded != nil { // another host may have it by now, with its files
		return unrecorded
	}
	if r.Of == nil {
		if err := e.of.cfg.Planner.Files().RemoveUser(e.of.cfg.Trash, r.ID); err != nil {
			return err
		}
		if err := e.of.unregister(ctx, r.ID); err != nil {
			return err
		}
	}
	return e.of.forget(r)
}

// giveBack gives back the sandbox's place in the quotas, if it has one.
func (e *entry) giveBack() {
	e.mu.Lock()
	give := e.give
	e.give = nil
	e.mu.Unlock()
	if give != nil {
		give()
	}
}

// unregister forgets a sandbox's user. Processes that other callers have started there go on.
func (s *Sandboxes) unregister(ctx context.Context, id string) error {
	parsed, err := ids.ParseSandbox(id)
	if err != nil {
		return err
	}
	if err := s.cfg.Planner.Sandboxes().Delete(parsed); err != nil && !cerrdefs.IsNotFound(err) {
		return err
	}
	return s.cfg.Processes.FollowPause(ctx, id)
}

// removalLimit bounds the removal of one sandbox.
const removalLimit = time.Minute
