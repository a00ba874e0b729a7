package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/libp2p/go-yamux/v5"
	"golang.org/x/sync/singleflight"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/agent/ask"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/relay"
)

// A program in a process's container is reached through an agent there, which connects to the container's own
// loopback. So this needs no access to the container's network, and opens none.

// PortConn is a connection to a port in a process's container. Its Read returns io.EOF when the program has closed its
// direction, and another error when the connection has broken.
type PortConn struct {
	relay.Conn
	// Stream carries the connection.
	Stream ask.Stream
}

// Close closes the connection, once both directions have ended.
func (c PortConn) Close() error { return c.Stream.Close() }

// Abort breaks the connection, so that the program does not take what it has received for the whole. It does not block.
func (c PortConn) Abort() {
	_ = c.Stream.SetDeadline(time.Unix(1, 0)) // ends calls that block
	go func() { _ = c.Stream.Reset() }()      // it waits for an agent that reads slowly, up to a limit
}

// dialLimit is how long a running agent may take to connect; its own limit is shorter.
const dialLimit = 15 * time.Second

// DialProcess connects to a TCP port of the loopback in a process's container. It blocks until the program there has
// accepted. ctx bounds the call, not the connection.
func (p *persistents) DialProcess(ctx context.Context, id string, port int) (PortConn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(context.Cause(p.ctx)) })()
	stream, err := p.dialProcess(ctx, id, port)
	if err != nil {
		return PortConn{}, fmt.Errorf("cannot connect to port %d: %w", port, err)
	}
	return PortConn{wire.Carry(stream), stream}, nil
}

func (p *persistents) dialProcess(ctx context.Context, id string, port int) (*yamux.Stream, error) {
	c := p.persistent(id)
	if c == nil {
		return nil, fmt.Errorf("the process does not run: %w", cerrdefs.ErrNotFound)
	}
	mux, err := p.agentOf(ctx, c, &c.ports, "forward", wire.ForwardVersion)
	if err != nil {
		return nil, p.explain(err)
	}
	stream, err := dial(ctx, mux, port)
	if now := c.Now(); err != nil && now.State == life.Frozen && now.Reason == life.Requested {
		return nil, life.ErrPaused
	}
	return stream, err
}

// explain is engine.Explain, except that life.ErrPaused stays what it is: callers resume the container.
func (h *host) explain(err error) error {
	if errors.Is(err, life.ErrPaused) {
		return err
	}
	return h.engine.Explain(err)
}

// agentOf returns the session of an agent of a mode in a container that runs without the service, and starts it if needed.
func (h *host) agentOf(ctx context.Context, c *container, f *forwarder, mode string, version int) (*yamux.Session, error) {
	return f.open(ctx, func() (mux *yamux.Session, err error) {
		done, err := c.Use(h.ctx)
		if err != nil {
			return nil, err
		}
		defer done()
		err = startAgent(h.ctx, h.docker, c.ID(), mode, func(ctx context.Context, conn *execConn) (err error) {
			mux, err = readHello(ctx, conn, version)
			return err
		})
		if errors.Is(err, context.DeadlineExceeded) {
			// The tenant may have stopped the agent while it was starting, and Docker would wait for it forever.
			err = errors.Join(err, h.engine.AbortExecs(c.ID()))
		}
		return mux, err
	})
}

// dial asks the agent for a connection. An agent that does not answer is given up: the next connection starts another.
func dial(ctx context.Context, mux *yamux.Session, port int) (_ *yamux.Stream, err error) {
	stream, err := openStream(ctx, mux)
	if err != nil {
		return nil, err
	}
	defer func() {
		switch {
		case err == nil:
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case errors.Is(err, yamux.ErrTimeout):
			err = errors.New("the agent there does not answer")
			_ = mux.Close()
		}
		if err != nil {
			PortConn{Stream: stream}.Abort()
		}
	}()
	defer context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Unix(1, 0)) })()
	if err := stream.SetDeadline(time.Now().Add(dialLimit)); err != nil {
		return nil, err
	}
	if err := wire.RequestPort(stream, port); err != nil {
		return nil, err
	}
	return stream, stream.SetDeadline(time.Time{})
}

// forwarder is the agent in one container that connects to ports. The first connection starts it, and so does the next
// one after it has ended. It ends with the container, or with the service.
type forwarder struct {
	starts singleflight.Group

	mu     sync.Mutex
	mux    *yamux.Session
	closed bool
}

var errForwarderClosed = errors.New("the process has ended")

// open returns the agent's session. Calls that come while it starts share that start. start has a limit of its own;
// ctx bounds how long this caller waits.
func (f *forwarder) open(ctx context.Context, start func() (*yamux.Session, error)) (*yamux.Session, error) {
	opened := f.starts.DoChan("", func() (any, error) { return f.running(start) })
	select {
	case o := <-opened:
		mux, _ := o.Val.(*yamux.Session)
		return mux, o.Err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// running returns the existing session, or starts one.
func (f *forwarder) running(start func() (*yamux.Session, error)) (*yamux.Session, error) {
	f.mu.Lock()
	mux, closed := f.mux, f.closed
	f.mu.Unlock()
	if closed {
		return nil, errForwarderClosed
	}
	if mux != nil && !mux.IsClosed() {
		return mux, nil
	}
	mux, err := start()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed && err == nil {
		_ = mux.Close()
		mux, err = nil, errForwarderClosed
	}
	f.mux = mux
	return mux, err
}

// hangUp ends the agent and its connections.
func (f *forwarder) hangUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mux != nil {
		_ = f.mux.Close()
	}
}

// close ends the agent and its connections, for good.
func (f *forwarder) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.hangUp()
}

// handOver closes a forwarder and hands its agent over to another one.
func (f *forwarder) handOver(to *forwarder) {
	f.mu.Lock()
	defer f.mu.Unlock()
	to.mux, f.mux, f.closed = f.mux, nil, true
}
