package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"slices"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/quota"
)

// A persistent container is made, found and ended like that of a process, and only on request: it
// is never idle, and never stale. Its first program has its commands (package control), so these
// keep running without the service. InspectProcess, PauseDetached, ResumeDetached, RemoveProcess
// and DialProcess are for it, too.

// StartPersistent makes the Spec's container, unless BindPersistent has, and waits until it takes
// commands; it is started in the token's turn. After an error nothing is left of it.
func (e *Executor) StartPersistent(ctx context.Context, spec Spec,
	token quota.Token) (ProcessContainer, error) {
	if bound, is, err := e.boundPersistent(ctx, spec); is || err != nil {
		return bound, err
	}
	return e.startAlone(ctx, spec, token, "sandbox")
}

// Persistent lists this instance's persistent containers, including those that have ended, without
// those in the pool. Those that run can be used then.
func (e *Executor) Persistent(ctx context.Context) ([]ProcessContainer, error) {
	if err := e.reconcileOnce(ctx); err != nil {
		return nil, err
	}
	list, err := e.listAlone(ctx, labelPersistent)
	return slices.DeleteFunc(list, func(p ProcessContainer) bool { return p.Spec.IsPooled() }), err
}

// AskPersistent opens a stream for one control.Request to a persistent container. The error is
// errdefs.ErrNotFound if the container does not run, and ErrPaused if it was paused on request.
func (e *Executor) AskPersistent(ctx context.Context, id string) (control.Stream, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.ctx, func() { cancel(context.Cause(e.ctx)) })()
	c := e.runningDetached(id)
	if c == nil {
		return nil, fmt.Errorf("the sandbox does not run: %w", cerrdefs.ErrNotFound)
	}
	done, err := c.Use(ctx)
	if errors.Is(err, life.ErrLeft) {
		return nil, fmt.Errorf("the sandbox does not run: %w", cerrdefs.ErrNotFound)
	}
	if err != nil {
		return nil, e.explain(err)
	}
	defer done()
	agent, err := e.agentOf(ctx, c, &c.asks, session.Bridge)
	if err != nil {
		return nil, e.explain(err)
	}
	stream, err := agent.Ask(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the sandbox's commands: %w", err)
	}
	return stream, nil
}

// PersistentRuns reports whether a persistent container is there, paused or not. Until what runs
// was compared with Docker for the first time, none is known to be gone.
func (e *Executor) PersistentRuns(id string) bool {
	return !e.reconciled.Load() || e.runningDetached(id) != nil
}

// SetEgress changes what a persistent container may reach from now on. Its Spec names the network,
// and what may pass there can be changed; the caller keeps a record of it, for Gate.Wanted. The
// error is errdefs.ErrFailedPrecondition if the container has no network, or another one.
func (e *Executor) SetEgress(ctx context.Context, id string, reach Egress) error {
	c := e.runningDetached(id)
	switch {
	case c == nil:
		return fmt.Errorf("the sandbox does not run: %w", cerrdefs.ErrNotFound)
	case c.spec.Egress.Profile == "" || reach.Profile != c.spec.Egress.Profile:
		return fmt.Errorf(
			"the sandbox was made without a network, or with another one, which cannot be "+
				"changed: make another sandbox: %w",
			cerrdefs.ErrFailedPrecondition)
	}
	return c.net.Change(ctx, c.ID(), reach)
}

// Usage asks the engine what a container uses.
func (e *Executor) Usage(ctx context.Context, id string) (cgroup.Usage, error) {
	usage, err := e.engine.Usage(ctx, id)
	if err != nil {
		err = e.engine.Explain(err)
	}
	return usage, err
}

// Detached containers are never idle, so they are paused only on request: their user's, or their
// deadline's. While paused on request, they cannot be used. Only a signal resumes one all the same,
// because its sender wants it to end.

// PauseDetached pauses the container of a process, or a persistent one, until ResumeDetached.
// Connections to its ports end. The error is errdefs.ErrNotFound if the container has ended.
func (e *Executor) PauseDetached(ctx context.Context, id string) error {
	c := e.runningDetached(id)
	err := life.ErrLeft
	if c != nil {
		err = c.Pause(ctx)
	}
	if errors.Is(err, life.ErrLeft) {
		return fmt.Errorf("cannot pause the container: it does not run: %w", cerrdefs.ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("cannot pause the container: %w", e.engine.Explain(err))
	}
	c.ports.HangUp() // not before: who is connecting then learns that the container was paused
	return nil
}

// ResumeDetached resumes a container that was paused. It does nothing if the container runs, or
// does not exist.
func (e *Executor) ResumeDetached(ctx context.Context, id string) error {
	c := e.runningDetached(id)
	if c == nil {
		return nil
	}
	if err := c.Resume(ctx); err != nil && !errors.Is(err, life.ErrLeft) {
		return fmt.Errorf("cannot resume the container: %w", e.engine.Explain(err))
	}
	e.lookUpSoon(c)
	return nil
}
