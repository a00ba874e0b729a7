package dockerexec

import (
	"context"
	"fmt"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/dockerd"
)

// Containers that do not need the service are never idle, so they are paused and resumed only on request. Meanwhile, nobody
// uses one: only a signal has it go on all the same, as who sends one has it end.

// FreezeIdle freezes the containers of a user in which nothing runs, before their time. It blocks until that is done.
func (e *Executor) FreezeIdle(user string) {
	e.freezeUnused(func(c *container) bool { return c.spec.User == user })
}

// PauseProcess pauses the container of a process, or one that lasts, until ResumeProcess. Connections to its ports end.
// One that has ended is none: the error is errdefs.ErrNotFound.
func (e *Executor) PauseProcess(ctx context.Context, id string) error {
	c := e.alone(id)
	if c == nil {
		return fmt.Errorf("cannot pause the process: it does not run: %w", cerrdefs.ErrNotFound)
	}
	if err := e.pauses.stop(ctx, e.docker, id); err != nil {
		return fmt.Errorf("cannot pause the process: %w", dockerd.Explain(e.docker, err))
	}
	c.ports.hangUp() // not before: who is connecting then learns that the container was paused
	return nil
}

// ResumeProcess has a container go on that was paused. It is content where it runs.
func (e *Executor) ResumeProcess(ctx context.Context, id string) error {
	if err := e.pauses.goOn(ctx, e.docker, id); err != nil {
		return fmt.Errorf("cannot resume the process: %w", dockerd.Explain(e.docker, err))
	}
	return nil
}
