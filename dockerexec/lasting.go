package dockerexec

import (
	"context"
	"fmt"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/agent/ask"
	"github.com/daycare-run/sandbox/internal/dockerd"
)

// A container that lasts is made, found and ended like that of a process, and no sooner than somebody says so: it is
// never idle, and never stale. Its first program has its commands (package ask), so these go on without the service.
// InspectProcess, RemoveProcess and DialProcess are for it, too. One that is asked something while it is paused goes on,
// so whoever pauses it sees to that.

// StartLasting makes the Spec's container and waits until it takes commands. After an error nothing is left of it.
func (e *Executor) StartLasting(ctx context.Context, spec Spec) (ProcessContainer, error) {
	return e.startAlone(ctx, spec, "sandbox")
}

// Lasting lists this instance's containers that last, also those that have ended.
func (e *Executor) Lasting(ctx context.Context) ([]ProcessContainer, error) {
	return e.listAlone(ctx, labelLasting)
}

// AskLasting opens a stream for one ask.Request to a container that lasts. The error is errdefs.ErrNotFound where the
// container does not run. It blocks while the container is paused.
func (e *Executor) AskLasting(ctx context.Context, id string) (ask.Stream, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.ctx, func() { cancel(context.Cause(e.ctx)) })()
	e.mu.Lock()
	c := e.processes[id]
	e.mu.Unlock()
	if c == nil {
		return nil, fmt.Errorf("the sandbox does not run: %w", cerrdefs.ErrNotFound)
	}
	mux, err := e.agentOf(ctx, c, &c.asks, "bridge", ask.Version)
	if err != nil {
		return nil, dockerd.Explain(e.docker, err)
	}
	stream, err := mux.OpenStream(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the sandbox's commands: %w", err)
	}
	return stream, nil
}

// LastingRuns reports whether a container that lasts is there, paused or not.
func (e *Executor) LastingRuns(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.processes[id] != nil
}

// PauseLasting has a container that lasts stand still until ResumeLasting, also over a restart of the service.
func (e *Executor) PauseLasting(ctx context.Context, id string) error {
	frozen, err := e.pauses.freeze(ctx, e.docker, id, func() bool { return e.LastingRuns(id) })
	if err == nil && !frozen {
		err = fmt.Errorf("the sandbox does not run: %w", cerrdefs.ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("cannot pause the sandbox: %w", dockerd.Explain(e.docker, err))
	}
	return nil
}

// ResumeLasting lets it go on. One that cannot has been ended.
func (e *Executor) ResumeLasting(ctx context.Context, id string) error {
	done, err := e.pauses.use(ctx, e.docker, id)
	if err != nil {
		return dockerd.Explain(e.docker, err)
	}
	done()
	return nil
}
