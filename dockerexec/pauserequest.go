package dockerexec

import (
	"context"
	"fmt"

	cerrdefs "github.com/containerd/errdefs"
)

// Containers that run without the service are never idle, so they are paused and resumed only on request. While
// paused, they cannot be used. Only a signal resumes one all the same, because its sender wants it to end.

// FreezeIdle freezes the idle containers of a user ahead of time. It blocks until that is done.
func (e *Executor) FreezeIdle(user string) {
	e.freezeUnused(func(c *container) bool { return c.spec.User == user })
}

// PauseProcess pauses the container of a process, or a lasting one, until ResumeProcess. Connections to its ports end.
// The error is errdefs.ErrNotFound if the container has ended.
func (e *Executor) PauseProcess(ctx context.Context, id string) error {
	c := e.alone(id)
	if c == nil {
		return fmt.Errorf("cannot pause the process: it does not run: %w", cerrdefs.ErrNotFound)
	}
	if err := e.pauses.stop(ctx, e.engine, id); err != nil {
		return fmt.Errorf("cannot pause the process: %w", e.engine.Explain(err))
	}
	c.ports.hangUp() // not before: who is connecting then learns that the container was paused
	return nil
}

// ResumeProcess resumes a container that was paused. It does nothing if the container runs.
func (e *Executor) ResumeProcess(ctx context.Context, id string) error {
	if err := e.pauses.goOn(ctx, e.engine, id); err != nil {
		return fmt.Errorf("cannot resume the process: %w", e.engine.Explain(err))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.processes[id]; c != nil {
		e.lookUpSoon(c)
	}
	return nil
}
