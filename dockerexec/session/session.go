package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/mux"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// AgentPath is where every container finds the agent, whatever its image.
const AgentPath = "/.daycare/agent"

// HandshakeLimit is how long an agent may take from its start to its greeting: on a busy machine, a
// second. It is for what hangs while the container is there; if the container ends, that is noticed
// at once.
const HandshakeLimit = 20 * time.Second

// closeDelay is how long the end of a command's stdin may wait for other frames to be sent with it
// (mux.Coalesce).
const closeDelay = 2 * time.Millisecond

var (
	// ErrBroken marks a command that failed because the session broke. Either the tenant or Docker
	// has caused that; the next call gets a new container.
	ErrBroken = errors.New("the container was lost while the command ran (it was killed from " +
		"inside, or was removed), so it is not known how far the command came; the next call " +
		"gets a new container")
	// ErrEnded says that the session had ended before anything of the command was sent.
	ErrEnded = errors.New("the session with the container has ended")
)

// Start starts the agent in a running container, in a mode, and returns its connection. ctx bounds
// the start, not the agent.
type Start func(ctx context.Context, mode string) (Conn, error)

// Session is a running agent, kept for as long as its container is in use: the container's first
// process, or one that was started in a container that was found. It is safe for concurrent use.
type Session struct {
	mux     *yamux.Session
	control *yamux.Stream
	spool   *spool

	controlMu sync.Mutex // held while a control frame is written
}

// Open greets the agent that is a running container's first process, or starts one if first is nil.
// It blocks until the agent has answered. ctx bounds that, not the session. The session reads the
// spool file at the path until it ends. After an error the caller closes first.
func Open(ctx context.Context, first Conn, start Start, spoolPath string) (*Session, error) {
	spool, err := openSpool(spoolPath)
	if err != nil {
		return nil, err
	}
	s := &Session{spool: spool}
	spool.tell = s.tell
	if first == nil {
		err = s.startAgent(ctx, start)
	} else {
		ctx, cancel := context.WithTimeout(ctx, HandshakeLimit)
		defer cancel()
		err = handshake(ctx, &greeter{Conn: first}, s.greet)
	}
	if err != nil {
		spool.close()
		return nil, err
	}
	go func() {
		<-s.Broken()
		spool.close()
	}()
	return s, nil
}

// How often starting an agent in a container that was found is tried, for how long, and the pause
// between two tries.
const (
	agentTries = 5
	agentDies  = 3 * time.Second
	agentAgain = 200 * time.Millisecond
)

// startAgent starts the agent in a container that was found. The previous service's agent may still
// be ending there, and ends all that begins beside it: an agent that dies at once is followed by
// another.
func (s *Session) startAgent(ctx context.Context, start Start) error {
	for begun, try := time.Now(), 1; ; try++ {
		err := startAgent(ctx, start, "session", s.greet)
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

// startAgent starts the agent in a running container, in a mode that speaks package wire, and
// greets it over its stdin and stdout. ctx bounds that. After an error they are closed.
func startAgent(
	ctx context.Context, start Start, mode string, greet func(context.Context, *greeter) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, HandshakeLimit)
	defer cancel()
	conn, err := start(ctx, mode)
	if err != nil {
		return err
	}
	return handshake(ctx, &greeter{Conn: conn}, greet)
}

// handshake exchanges the first messages with an agent. ctx must have a deadline.
func handshake(
	ctx context.Context, conn *greeter, greet func(context.Context, *greeter) error,
) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err := greet(ctx, conn)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		if ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) {
			err = fmt.Errorf("%w (%v)", cmp.Or(context.Cause(ctx), context.DeadlineExceeded), err)
		}
		words := conn.dockerError()
		_ = conn.Close()
		if words != "" {
			return fmt.Errorf("cannot start the agent: Docker says %q", words)
		}
		if complaint := conn.Stderr(); complaint != "" {
			err = fmt.Errorf("%w: %q", err, complaint)
		}
		return fmt.Errorf("the agent does not answer: %w", err)
	}
	return nil
}

func (s *Session) greet(ctx context.Context, conn *greeter) (err error) {
	// Reading reports what is wrong.
	_ = wire.WriteMessage(conn, wire.KindHello, wire.Hello{Version: wire.Version})
	if s.mux, err = readHello(ctx, conn, wire.Version); err == nil {
		s.control, err = s.mux.OpenStream(ctx)
	}
	return err
}

// readHello waits for the agent's Hello, which must be of that version, and begins to multiplex.
// ctx must have a deadline.
func readHello(ctx context.Context, conn *greeter, version int) (*yamux.Session, error) {
	deadline, _ := ctx.Deadline()
	if err := conn.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	var hello wire.Hello
	if err := wire.ReadMessage(conn, wire.KindHello, &hello); err != nil {
		return nil, err
	}
	if hello.Version != version {
		return nil, fmt.Errorf("it speaks version %d of the protocol, not %d",
			hello.Version, version)
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	conn.greeted = true
	windows := &windowBudget{left: windowGrowth}
	return yamux.Client(mux.Coalesce(conn, closeDelay), mux.Config(0), windows.open)
}

// openStream opens a stream to an agent. If the caller leaves meanwhile, that is not the agent's
// fault: the error is ctx's cause.
func openStream(ctx context.Context, mux *yamux.Session) (*yamux.Stream, error) {
	// If the context ends while a stream is being opened, mux says that the agent is too slow, and
	// keeps the stream for good.
	opening, done := WithGrace(ctx, receiveLimit)
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

// WithGrace returns a context that ends d after ctx does.
func WithGrace(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(d, cancel) })
	return longer, func() { stop(); cancel() }
}

// Close ends the session and with it every command; it does not wait for them.
func (s *Session) Close() { _ = s.mux.Close() }

// Broken returns a channel that is closed when the session has ended, for whatever reason.
func (s *Session) Broken() <-chan struct{} { return s.mux.CloseChan() }

// StartAhead has the agent start a shell that waits for the next command. It does not wait for the
// shell. If it fails, the session ends.
func (s *Session) StartAhead() { _ = s.tell(wire.Control{Ahead: true}) }

// tell sends a control frame. An agent that does not take it can no longer end anything, and half a
// frame cannot be taken back, so either ends the session.
func (s *Session) tell(m wire.Control) error {
	s.controlMu.Lock()
	defer s.controlMu.Unlock()
	err := s.control.SetWriteDeadline(time.Now().Add(receiveLimit))
	if err == nil {
		err = wire.WriteMessage(s.control, wire.KindControl, m)
	}
	if err != nil {
		s.Close()
	}
	return err
}

// LookUp is what an agent looks up in its container, and has those hear who watch files.
type LookUp struct {
	Paths []string
	// Modified are those of Paths with other content.
	Modified []string
	// Others says that programs have changed Paths: nothing is heard of what those in the container
	// have changed themselves.
	Others bool
}

// LookUp has the agent look paths up in the container. It blocks until the agent has, or ctx ends.
func (s *Session) LookUp(ctx context.Context, l LookUp) error {
	stream, err := openStream(ctx, s.mux)
	if err != nil {
		return err
	}
	return exchange(ctx, stream,
		wire.KindStart, wire.Start{LookUp: l.Paths, Modified: l.Modified, Others: l.Others}, wire.KindExit, &wire.Exit{})
}

// Rename has the agent rename a file in the container, if a program there watches files. It blocks
// until it has answered, or ctx ends.
func (s *Session) Rename(ctx context.Context, r wire.Rename) (wire.Renamed, error) {
	stream, err := openStream(ctx, s.mux)
	if err != nil {
		return wire.Renamed{}, err
	}
	exit := wire.Exit{}
	if err := exchange(ctx, stream, wire.KindStart, wire.Start{Rename: &r}, wire.KindExit,
		&exit); err != nil || exit.Renamed == nil {
		return wire.Renamed{}, err
	}
	return *exit.Renamed, nil
}

// exchange sends a message on a stream of its own and waits for the answer. It closes the stream.
func exchange(
	ctx context.Context, stream control.Stream,
	kind wire.Kind, message any, answers wire.Kind, answer any,
) error {
	defer context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Unix(1, 0)) })()
	err := wire.WriteMessage(stream, kind, message)
	if err == nil {
		err = wire.ReadMessage(stream, answers, answer)
	}
	if err != nil {
		abort(stream)
		return err
	}
	return stream.Close()
}

// abort breaks a stream. It does not block.
func abort(stream control.Stream) {
	_ = stream.SetDeadline(time.Unix(1, 0)) // ends calls that block
	go func() { _ = stream.Reset() }()      // waits for an agent that reads slowly, up to a limit
}
