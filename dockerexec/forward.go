package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/agent/wire"
	"github.com/daycare-run/sandbox/engine"
)

// A program in a process's container is reached through an agent there, which connects to the container's own
// loopback. So this needs no way into the container's network, and opens none.

// PortConn is a connection to a port in a process's container.
type PortConn interface {
	io.ReadWriteCloser
	// CloseWrite tells the program that nothing more comes.
	CloseWrite() error
	// Abort breaks the connection, so that the program does not take what has come for the whole.
	Abort()
}

type portConn struct{ *yamux.Stream }

func (c portConn) Abort() { _ = c.Reset() }

// dialLimit is how long an agent that is there may take to connect.
const dialLimit = 15 * time.Second

// DialProcess connects to a TCP port of the loopback in a process's container. It blocks until the program
// there has accepted. ctx is for the call alone.
func (e *Executor) DialProcess(ctx context.Context, id string, port int) (PortConn, error) {
	e.mu.Lock()
	w := e.processes[id]
	e.mu.Unlock()
	if w == nil {
		return nil, fmt.Errorf("cannot connect to port %d: the process does not run: %w", port, cerrdefs.ErrNotFound)
	}
	mux, err := w.ports.open(ctx, func(ctx context.Context) (mux *yamux.Session, err error) {
		err = startAgent(ctx, e.docker, id, "forward", func(ctx context.Context, conn *execConn) (err error) {
			mux, err = greetAgent(ctx, conn)
			return err
		})
		return mux, err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot connect to port %d: %w", port, engine.Explain(e.docker, err))
	}
	stream, err := mux.OpenStream(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to port %d: %w", port, err)
	}
	if err := dial(ctx, stream, port); err != nil {
		_ = stream.Reset()
		return nil, fmt.Errorf("cannot connect to port %d: %w", port, err)
	}
	return portConn{stream}, nil
}

func dial(ctx context.Context, stream *yamux.Stream, port int) error {
	defer context.AfterFunc(ctx, func() { _ = stream.Reset() })()
	if err := stream.SetDeadline(time.Now().Add(dialLimit)); err != nil {
		return err
	}
	if err := wire.WriteMessage(stream, wire.KindDial, wire.Dial{Port: port}); err != nil {
		return err
	}
	var dialed wire.Dialed
	err := wire.ReadMessage(stream, wire.KindDialed, &dialed)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, yamux.ErrTimeout):
		return errors.New("the agent there does not answer")
	case err != nil:
		return err
	}
	if dialed.Fault != "" {
		return fmt.Errorf("inside the container: %.500q", dialed.Fault)
	}
	return stream.SetDeadline(time.Time{})
}

// forwarder is the agent in one container that connects to ports. The first connection starts it, and so does
// the next one after it has ended; it ends with the container, or with the service.
type forwarder struct {
	mu     sync.Mutex // held while it is started
	mux    *yamux.Session
	closed bool
}

func (f *forwarder) open(ctx context.Context, start func(context.Context) (*yamux.Session, error)) (_ *yamux.Session, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, errors.New("the process has ended")
	}
	if f.mux == nil || f.mux.IsClosed() {
		if f.mux, err = start(ctx); err != nil {
			f.mux = nil
			return nil, err
		}
	}
	return f.mux, nil
}

// close ends the agent and its connections, for good.
func (f *forwarder) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if f.mux != nil {
		_ = f.mux.Close()
	}
}
