package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/libp2p/go-yamux/v5"
	"golang.org/x/sync/singleflight"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/relay"
)

// Mode is what an Agent is for.
type Mode struct {
	name    string
	version int // of the protocol that it speaks
}

var (
	// Forward connects to ports of the container's own loopback, so this needs no access to the
	// container's network, and opens none.
	Forward = Mode{"forward", wire.ForwardVersion}
	// Bridge passes streams on to the first process of a persistent container (package control).
	Bridge = Mode{"bridge", control.Version}
)

// Agent is an agent in a container that runs without the service. It ends with the container, or
// with the service. It is safe for concurrent use.
type Agent struct{ mux *yamux.Session }

// StartAgent starts an agent. It blocks until that has greeted, for HandshakeLimit at most; the
// error is then context.DeadlineExceeded. ctx bounds the start, not the agent.
func StartAgent(ctx context.Context, start Start, mode Mode) (*Agent, error) {
	a := &Agent{}
	err := startAgent(ctx, start, mode.name, func(ctx context.Context, conn *greeter) (err error) {
		a.mux, err = readHello(ctx, conn, mode.version)
		return err
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// PortConn is a connection to a port in a container. Its Read returns io.EOF when the program has
// closed its direction, and another error when the connection has broken.
type PortConn struct {
	relay.Conn
	// Stream carries the connection.
	Stream control.Stream
}

// Close closes the connection, once both directions have ended.
func (c PortConn) Close() error { return c.Stream.Close() }

// Abort breaks the connection, so that the program does not take what it has received for the
// whole. It does not block.
func (c PortConn) Abort() { abort(c.Stream) }

// dialLimit is how long a running agent may take to connect; its own limit is shorter.
const dialLimit = 15 * time.Second

// Dial asks an agent of mode Forward for a connection to a TCP port of the container's loopback. It
// blocks until the program there has accepted, for 15 s at most. ctx bounds the call, not the
// connection. An agent that does not answer is closed: OnDemand then starts another.
func (a *Agent) Dial(ctx context.Context, port int) (_ PortConn, err error) {
	stream, err := openStream(ctx, a.mux)
	if err != nil {
		return PortConn{}, err
	}
	defer func() {
		switch {
		case err == nil:
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case errors.Is(err, yamux.ErrTimeout):
			err = errors.New("the agent there does not answer")
			_ = a.mux.Close()
		}
		if err != nil {
			abort(stream)
		}
	}()
	defer context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Unix(1, 0)) })()
	if err := stream.SetDeadline(time.Now().Add(dialLimit)); err != nil {
		return PortConn{}, err
	}
	if err := wire.RequestPort(stream, port); err != nil {
		return PortConn{}, err
	}
	return PortConn{wire.Carry(stream), stream}, stream.SetDeadline(time.Time{})
}

// Ask opens a stream for one control.Request to an agent of mode Bridge. The caller closes the
// stream. If ctx ends meanwhile, the error is its cause.
func (a *Agent) Ask(ctx context.Context) (control.Stream, error) {
	stream, err := openStream(ctx, a.mux)
	if err != nil {
		return nil, err // not a stream that is nil
	}
	return stream, nil
}

// AskOnce sends a request that has one Answer, and blocks until that comes or ctx ends. It closes
// the stream. A fault in the Answer is no error.
func AskOnce(ctx context.Context, stream control.Stream,
	r control.Request) (answer control.Answer, err error) {
	err = exchange(ctx, stream, wire.KindRequest, r, wire.KindAnswer, &answer)
	return answer, err
}

// readyLimit is how long an agent may take to say that a shell waits.
const readyLimit = 20 * time.Second

// AwaitShell blocks until a shell waits for the first command in a persistent container, or none
// can, for 20 s at most; nobody has the container yet. The agent is of mode Bridge.
//
// The shell is started from the image alone, without anybody's text or home. The first program that
// starts in a container is slow under gVisor, whose kernel has none of the image's files yet, so
// this helps also if no shell will wait.
func (a *Agent) AwaitShell(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	stream, err := openStream(ctx, a.mux)
	if err != nil {
		return fmt.Errorf("cannot start a shell that waits: %w", err)
	}
	defer stream.Close() //nolint:errcheck // all has been said
	defer context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Unix(1, 0)) })()
	err = wire.WriteMessage(stream, wire.KindRequest, control.Request{Do: control.Ready})
	if err == nil {
		err = wire.ReadMessage(stream, wire.KindAnswer, &control.Answer{})
	}
	if err != nil {
		return fmt.Errorf("the agent does not say whether a shell waits: %w", err)
	}
	return nil
}

// OnDemand is the Agent of one purpose in one container. The first use starts it, and so does the
// next one after it has ended. The zero value is ready. It is safe for concurrent use.
type OnDemand struct {
	// EndsAfter is how long nobody uses the agent until it ends; 0 for never. A stream that is open
	// is a use.
	EndsAfter time.Duration

	starts singleflight.Group

	mu     sync.Mutex
	agent  *Agent
	used   time.Time
	unused *time.Timer // runs while the agent may become unused
	closed bool
}

var errClosed = errors.New("the process has ended")

// Open returns the agent. Calls that come while it starts share that start. start has a limit of
// its own; ctx bounds how long this caller waits, and the error is then ctx's cause.
func (d *OnDemand) Open(ctx context.Context, start func() (*Agent, error)) (*Agent, error) {
	opened := d.starts.DoChan("", func() (any, error) { return d.running(start) })
	select {
	case o := <-opened:
		agent, _ := o.Val.(*Agent)
		return agent, o.Err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// running returns the existing agent, or starts one.
func (d *OnDemand) running(start func() (*Agent, error)) (*Agent, error) {
	if agent, err := d.existing(); agent != nil || err != nil {
		return agent, err
	}
	agent, err := start()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed && err == nil {
		_ = agent.mux.Close()
		agent, err = nil, errClosed
	}
	d.agent, d.used = agent, time.Now()
	if agent != nil && d.EndsAfter > 0 && d.unused == nil {
		d.unused = time.AfterFunc(d.EndsAfter, d.endUnused)
	}
	return agent, err
}

// existing returns nil if there is none.
func (d *OnDemand) existing() (*Agent, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed
	}
	if d.agent == nil || d.agent.mux.IsClosed() {
		return nil, nil
	}
	d.used = time.Now()
	return d.agent, nil
}

func (d *OnDemand) endUnused() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unused = nil
	if d.agent == nil || d.agent.mux.IsClosed() {
		return
	}
	left := time.Until(d.used.Add(d.EndsAfter))
	if d.agent.mux.NumStreams() > 0 {
		left = d.EndsAfter
	}
	if left <= 0 {
		_ = d.agent.mux.Close()
		return
	}
	d.unused = time.AfterFunc(left, d.endUnused)
}

// HangUp ends the agent and its connections. It does not wait for them.
func (d *OnDemand) HangUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.agent != nil {
		_ = d.agent.mux.Close()
	}
}

// Close ends the agent and its connections, for good. It does not wait for them.
func (d *OnDemand) Close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.HangUp()
}

// HandOver closes d and hands its agent over to another one, which has not been used yet.
func (d *OnDemand) HandOver(to *OnDemand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	to.agent, d.agent, d.closed = d.agent, nil, true
}
