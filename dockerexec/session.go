package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	containertypes "github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/mux"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// handshakeLimit is how long an agent may take from its exec to its greeting: on a busy machine, a second. It is for
// what hangs while the container is there; if the container ends, that is noticed at once.
const handshakeLimit = 20 * time.Second

// closeDelay is how long the end of a command's stdin may wait for other frames to be sent with it (mux.Coalesce).
const closeDelay = 2 * time.Millisecond

// ErrSession marks an exec that failed because the agent's session broke. Either the tenant or Docker has caused that;
// the next exec gets a new container.
var ErrSession = errors.New("the container was lost while the command ran (it was killed from inside, or was removed), so it is not known how far the command came; the next call gets a new container")

// session is a running agent, kept for as long as its container is in use: the container's first process, or one that
// docker exec has started in a container that was found.
type session struct {
	mux     *yamux.Session
	control *yamux.Stream
	spool   *spool
	ahead   *atomic.Bool // the Executor's, once the container is verified; nil before

	controlMu sync.Mutex // held while a control frame is written
}

// openSession greets the agent that is a running container's first process, or starts one if first is nil. ctx bounds
// that, not the session.
func openSession(ctx context.Context, docker *client.Client, containerID string, first *execConn, spool *spool) (*session, error) {
	s := &session{spool: spool}
	spool.tell = s.tell
	if first == nil {
		return s, s.startAgent(ctx, docker, containerID)
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	return s, handshake(ctx, first, s.greet)
}

// How often starting an agent in a container that was found is tried, for how long, and the pause between two tries.
const (
	agentTries = 5
	agentDies  = 3 * time.Second
	agentAgain = 200 * time.Millisecond
)

// startAgent starts the agent in a container that was found. The previous service's agent may still be ending there,
// and ends all that begins beside it: an agent that dies at once is followed by another.
func (s *session) startAgent(ctx context.Context, docker *client.Client, containerID string) error {
	for begun, try := time.Now(), 1; ; try++ {
		err := startAgent(ctx, docker, containerID, "session", s.greet)
		if err == nil || try == agentTries || time.Since(begun) > agentDies {
			return err
		}
		select {
		case <-time.After(agentAgain):
		case <-ctx.Done():
			return err
		}
	}
}

// attach opens the stdin and stdout of the first process of a container that has not been started yet. Docker closes
// that stdin when the connection has ended (StdinOnce).
func attach(ctx context.Context, docker *client.Client, containerID string) (*execConn, error) {
	hijacked, err := docker.ContainerAttach(ctx, containerID, containertypes.AttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		return nil, fmt.Errorf("cannot attach: %w", err)
	}
	return newExecConn(hijacked), nil
}

// startAgent starts the agent in a running container, in a mode that speaks package wire, and greets it over
// its stdin and stdout. ctx bounds that. After an error they are closed.
func startAgent(ctx context.Context, docker *client.Client, containerID, mode string, greet func(context.Context, *execConn) error) error {
	ctx, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	created, err := docker.ContainerExecCreate(ctx, containerID, containertypes.ExecOptions{
		Cmd:          []string{agentPath, mode},
		WorkingDir:   "/",
		AttachStdin:  true,
		AttachStdout: true,
		AttachStderr: true,
	})
	if err != nil {
		return err
	}
	hijacked, err := docker.ContainerExecAttach(ctx, created.ID, containertypes.ExecAttachOptions{})
	if err != nil {
		return err
	}
	return handshake(ctx, newExecConn(hijacked), greet)
}

// handshake exchanges the first messages with an agent. ctx must have a deadline.
func handshake(ctx context.Context, conn *execConn, greet func(context.Context, *execConn) error) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err := greet(ctx, conn)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		words := conn.dockerError()
		_ = conn.Close()
		if words != "" {
			return fmt.Errorf("cannot start the agent: Docker says %q", words)
		}
		if complaint := conn.complaint(); complaint != "" {
			err = fmt.Errorf("%w: %q", err, complaint)
		}
		return fmt.Errorf("the agent does not answer: %w", err)
	}
	return nil
}

func (s *session) greet(ctx context.Context, conn *execConn) (err error) {
	_ = wire.WriteMessage(conn, wire.KindHello, wire.Hello{Version: wire.Version}) // reading reports what is wrong
	if s.mux, err = readHello(ctx, conn, wire.Version); err == nil {
		s.control, err = s.mux.OpenStream(ctx)
	}
	return err
}

// readHello waits for the agent's Hello, which must be of that version, and begins to multiplex. ctx must have a deadline.
func readHello(ctx context.Context, conn *execConn, version int) (*yamux.Session, error) {
	deadline, _ := ctx.Deadline()
	if err := conn.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	var hello wire.Hello
	if err := wire.ReadMessage(conn, wire.KindHello, &hello); err != nil {
		return nil, err
	}
	if hello.Version != version {
		return nil, fmt.Errorf("it speaks version %d of the protocol, not %d", hello.Version, version)
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	conn.greeted = true
	windows := &windowBudget{left: windowGrowth}
	return yamux.Client(mux.Coalesce(conn, closeDelay), mux.Config(0), windows.open)
}

// openStream opens a stream to an agent. If the caller leaves meanwhile, that is not the agent's fault: the error is
// ctx's cause.
func openStream(ctx context.Context, mux *yamux.Session) (*yamux.Stream, error) {
	// If the context ends while a stream is being opened, mux says that the agent is too slow, and keeps the stream for good.
	opening, done := withGrace(ctx, receiveLimit)
	defer done()
	stream, err := mux.OpenStream(opening)
	if ctx.Err() == nil {
		return stream, err
	}
	if err == nil {
		_ = stream.Reset()
	}
	return nil, context.Cause(ctx)
}

// close ends the session and with it every command; it does not wait for them.
func (s *session) close() { _ = s.mux.Close() }

// broken returns a channel that is closed when the session has ended, for whatever reason.
func (s *session) broken() <-chan struct{} { return s.mux.CloseChan() }

// tell sends a control frame. An agent that does not take it can no longer end anything, and half a frame cannot be
// taken back, so either ends the session.
func (s *session) tell(m wire.Control) error {
	s.controlMu.Lock()
	defer s.controlMu.Unlock()
	err := s.control.SetWriteDeadline(time.Now().Add(receiveLimit))
	if err == nil {
		err = wire.WriteMessage(s.control, wire.KindControl, m)
	}
	if err != nil {
		s.close()
	}
	return err
}
