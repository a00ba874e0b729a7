package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/workload/attach"
)

// attach is an exec over a WebSocket: the first message is the exec as JSON. After that, stdin and
// signals come in, and output and the exit go out.
func (s *server) attach(w http.ResponseWriter, req *http.Request) error {
	if err := wantsWebSocket(req,
		"GET …/exec is for WebSockets; to run a command, POST it"); err != nil {
		return err
	}
	return s.converse(w, req,
		func(ctx, writing context.Context, a *attached, hangUp func(error)) (*types.Result, error) {
			return a.run(ctx, writing, s, req.PathValue("id"), hangUp)
		})
}

func wantsWebSocket(req *http.Request, otherwise string) error {
	if !strings.EqualFold(req.Header.Get("Upgrade"), "websocket") {
		return fmt.Errorf("%s: %w", otherwise, cerrdefs.ErrInvalidArgument)
	}
	return nil
}

// conversation handles a WebSocket. It ends with ctx, writes for as long as writing lasts, and
// calls hangUp with the reason when nothing more comes in.
type conversation func(ctx, writing context.Context, a *attached,
	hangUp func(why error)) (*types.Result, error)

// converse makes the connection a WebSocket, runs the conversation, and sends how it ended.
func (s *server) converse(w http.ResponseWriter, req *http.Request, talk conversation) error {
	conn, err := upgrade(w, req)
	if err != nil || conn == nil {
		return err
	}
	s.upgraded = true
	defer conn.CloseNow()
	conn.SetReadLimit(s.cfg.MaxRequest)
	a := &attached{conn: conn, memory: s.memory, frame: make([]byte, 1, 1+frameCapacity)}
	// Canceling a write breaks the connection, so writes have their own context: a caller whose
	// fault ends the command is still told about it.
	writing, stopWriting := context.WithCancel(req.Context())
	defer stopWriting()
	// Events rather than pings: pings have their own timeout, which would cut off a caller who
	// pauses.
	a.quiet = time.AfterFunc(keepAlive, func() {
		_ = a.event(writing, types.Event{Type: types.EventKeepAlive})
	})
	defer a.quiet.Stop()
	ctx, cancel := context.WithCancelCause(req.Context())
	defer cancel(nil)
	exit, err := talk(ctx, writing, a, func(why error) {
		cancel(why)
		if callerRemains(why) {
			time.AfterFunc(farewell, stopWriting)
		} else {
			stopWriting()
		}
	})
	if why := context.Cause(ctx); err != nil && (callerRemains(why) || isGone(why)) {
		err = why
	}
	if err != nil {
		failure, _ := s.failure(err)
		_ = a.event(writing, types.Event{Type: types.EventError, Error: &failure})
	} else {
		_ = a.event(writing, types.Event{Type: types.EventExit, Result: exit})
	}
	_ = conn.Close(websocket.StatusNormalClosure, "")
	if err != nil {
		return reportedError{err}
	}
	return nil
}

// callerRemains reports whether the caller is still connected although nothing more is read from
// it.
func callerRemains(why error) bool {
	return cerrdefs.IsInvalidArgument(why) || cerrdefs.IsResourceExhausted(why) ||
		errors.Is(why, attach.ErrReplaced)
}

// farewell is how long a caller from whom nothing more is read may take to read the reason.
const farewell = 5 * time.Second

// firstLimit is how long the caller may take to send the first message.
const firstLimit = 30 * time.Second

// frameCapacity fits the largest piece of output.
const frameCapacity = 128 << 10

// attached is one exec's WebSocket.
type attached struct {
	conn   *websocket.Conn
	memory *requestMemory // for what the caller sends
	quiet  *time.Timer    // sends a keepalive
	frame  []byte         // a binary message being put together: its channel, then the data
}

// run reads the first message and runs the command that it asks for, as a conversation.
func (a *attached) run(ctx, writing context.Context, s *server, id string,
	hangUp func(why error)) (*types.Result, error) {
	body, err := a.first(ctx)
	if err != nil {
		return nil, err
	}
	r, err := request(body)
	if err != nil {
		return nil, err
	}
	if body.DetachOnDisconnect {
		e, err := s.startDetached(ctx, id, r, !body.givesStdin())
		if err != nil {
			return nil, err
		}
		return a.watch(ctx, writing, e, 0, hangUp)
	}
	in := attach.NewInput(r.Terminal != nil, func(n int) {
		_ = a.event(writing, types.Event{Type: types.EventStdin, Bytes: n})
	})
	defer in.End(io.EOF)
	if !body.givesStdin() {
		r.Stdin = in.Stdin()
	}
	r.Signals, r.Resizes = in.Signals(), in.Resizes()
	r.Started = func() { _ = a.event(writing, types.Event{Type: types.EventStart}) }
	r.Refused = func(line decisions.Summary) { _ = a.event(writing, refusal(line)) }
	go func() {
		// If the input ends by anything but its own eof, the caller has gone or has broken the
		// rules.
		err := a.receive(ctx, in)
		in.End(err)
		hangUp(err)
	}()
	ended, err := s.service.Exec(ctx, id, r, func(stream session.Stream, data []byte) error {
		return a.output(writing, stream, data)
	})
	if err != nil {
		return nil, err
	}
	if ended.CommandFault != "" {
		_ = a.output(writing, session.Stderr, []byte(ended.CommandFault+"\n"))
	}
	exit := result(ended)
	return &exit, nil
}

// read reads a message into memory.
func (a *attached) read(ctx context.Context,
	memory *requestMemory) (websocket.MessageType, []byte, error) {
	kind, from, err := a.conn.Reader(ctx)
	if err != nil {
		return kind, nil, err
	}
	message, err := io.ReadAll(memory.reader(from))
	return kind, message, err
}

// first reads the first message.
func (a *attached) first(ctx context.Context) (body sentExec, err error) {
	patient, done := context.WithTimeout(ctx, firstLimit)
	kind, first, err := a.read(patient, a.memory)
	done()
	if cerrdefs.IsResourceExhausted(err) {
		return body, err
	}
	if err != nil {
		return body, fmt.Errorf("cannot read the first message, the exec: %v: %w", err,
			cerrdefs.ErrInvalidArgument)
	}
	if kind != websocket.MessageText {
		return body, fmt.Errorf("the first message has to be the exec as JSON text: %w",
			cerrdefs.ErrInvalidArgument)
	}
	return body, decodeJSON(first, &body, a.memory)
}

func (a *attached) output(ctx context.Context, stream session.Stream, data []byte) error {
	channel := types.ChannelStdout
	if stream == session.Stderr {
		channel = types.ChannelStderr
	}
	a.frame = append(append(a.frame[:0], channel), data...)
	return a.write(ctx, websocket.MessageBinary, a.frame)
}

func (a *attached) event(ctx context.Context, e types.Event) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return a.write(ctx, websocket.MessageText, text)
}

func (a *attached) write(ctx context.Context, kind websocket.MessageType, message []byte) error {
	if err := a.conn.Write(ctx, kind, message); err != nil {
		return fmt.Errorf("cannot answer the caller: %.200q: %w", err, context.Canceled)
	}
	a.quiet.Reset(keepAlive)
	return nil
}
