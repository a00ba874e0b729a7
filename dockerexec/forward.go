package dockerexec

import (
	"context"
	"errors"
	"fmt"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/dockerexec/session"
)

// A program in a process's container is reached through an agent there, which connects to the
// container's own loopback. So this needs no access to the container's network, and opens none.

// DialProcess connects to a TCP port of the loopback in a process's container. It blocks until the
// program there has accepted. ctx bounds the call, not the connection.
func (e *Executor) DialProcess(ctx context.Context, id string, port int) (session.PortConn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.ctx, func() { cancel(context.Cause(e.ctx)) })()
	conn, err := e.dialProcess(ctx, id, port)
	if err != nil {
		return session.PortConn{}, fmt.Errorf("cannot connect to port %d: %w", port, err)
	}
	return conn, nil
}

func (e *Executor) dialProcess(ctx context.Context, id string, port int) (session.PortConn, error) {
	c := e.runningDetached(id)
	if c == nil {
		return session.PortConn{}, fmt.Errorf("the process does not run: %w", cerrdefs.ErrNotFound)
	}
	agent, err := e.agentOf(ctx, c, &c.ports, session.Forward)
	if err != nil {
		return session.PortConn{}, e.explain(err)
	}
	conn, err := agent.Dial(ctx, port)
	if now := c.Now(); err != nil && now.State == life.Frozen && now.Reason == life.Requested {
		return session.PortConn{}, life.ErrPaused
	}
	return conn, err
}

// ProcessPorts passes on at which TCP ports of the loopback programs in a process's container
// listen, at once and with each change, until each returns false, ctx ends or the container does.
// A process that was started by an earlier version may not be able to tell: then there is an error.
func (e *Executor) ProcessPorts(ctx context.Context, id string, each func([]int) bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.ctx, func() { cancel(context.Cause(e.ctx)) })()
	stream, err := e.AskPersistent(ctx, id)
	if err != nil {
		return err
	}
	return session.Ports(ctx, stream, each)
}

// explain is engine.Explain, except that life.ErrPaused stays what it is: callers resume the
// container.
func (e *Executor) explain(err error) error {
	if errors.Is(err, life.ErrPaused) {
		return err
	}
	return e.engine.Explain(err)
}

// agentOf returns the agent of a mode in a container that runs without the service, and starts it
// if needed.
func (e *Executor) agentOf(
	ctx context.Context, c *Container, of *session.OnDemand, mode session.Mode,
) (*session.Agent, error) {
	return of.Open(ctx, func() (*session.Agent, error) {
		done, err := c.Use(e.ctx)
		if err != nil {
			return nil, err
		}
		defer done()
		agent, err := session.StartAgent(e.ctx, e.starter(c.ID()), mode)
		if errors.Is(err, context.DeadlineExceeded) {
			// The tenant may have stopped the agent while it was starting, and Docker would wait
			// for it forever.
			err = errors.Join(err, e.engine.AbortExecs(c.ID()))
		}
		return agent, err
	})
}

// starter starts agents in a running container.
func (e *Executor) starter(id string) session.Start {
	return func(ctx context.Context, mode string) (session.Conn, error) {
		return e.engine.Exec(ctx, id,
			specs.Process{Args: []string{session.AgentPath, mode}, Cwd: "/"})
	}
}

// attach opens the stdin and stdout of the first process of a container that has not been started
// yet.
func (e *Executor) attach(ctx context.Context, id string) (session.Conn, error) {
	conn, err := e.engine.Attach(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("cannot attach: %w", err)
	}
	return conn, nil
}
