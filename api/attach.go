package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/coder/websocket"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/apitypes"
	"github.com/daycare-run/sandbox/dockerexec"
)

// attach is an exec over a WebSocket: the first message is the exec as JSON, then stdin and signals
// come in and output and the exit go out.
func (s *server) attach(w http.ResponseWriter, req *http.Request) error {
	if !strings.EqualFold(req.Header.Get("Upgrade"), "websocket") {
		return fmt.Errorf("GET …/exec is for WebSockets; to run a command, POST it: %w", cerrdefs.ErrInvalidArgument)
	}
	conn, err := websocket.Accept(w, req, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return nil // Accept has answered
	}
	defer conn.CloseNow()
	conn.SetReadLimit(s.cfg.MaxRequest)
	a := &attached{conn: conn, frame: make([]byte, 1, 1+frameCapacity)}
	// To cancel a write is to break the connection, so writes have a context of their own: one whose
	// fault ends the command is still told about it.
	writing, stopWriting := context.WithCancel(req.Context())
	defer stopWriting()
	ctx, cancel := context.WithCancelCause(req.Context())
	defer cancel(nil)
	exit, err := a.run(ctx, writing, s, req.PathValue("id"), func(why error) {
		cancel(why)
		if cerrdefs.IsInvalidArgument(why) {
			time.AfterFunc(farewell, stopWriting)
		} else {
			stopWriting()
		}
	})
	if fault := context.Cause(ctx); err != nil && cerrdefs.IsInvalidArgument(fault) {
		err = fault
	}
	if err != nil {
		failure, _ := classify(err)
		_ = a.event(writing, apitypes.Event{Type: apitypes.EventError, Error: &failure})
	} else {
		_ = a.event(writing, apitypes.Event{Type: apitypes.EventExit, Result: exit})
	}
	_ = conn.Close(websocket.StatusNormalClosure, "")
	return nil
}

// farewell is how long a caller that broke the rules may take to read what it did wrong.
const farewell = 5 * time.Second

// firstLimit is how long the caller may take to say what to run.
const firstLimit = 30 * time.Second

// frameCapacity is room for the largest output that comes at once.
const frameCapacity = 128 << 10

// attached is one exec's WebSocket.
type attached struct {
	conn  *websocket.Conn
	frame []byte // a binary message being put together: its channel, then the data
}

// run ends the command with ctx, and calls hangUp when nothing more comes in, with the reason.
func (a *attached) run(ctx, writing context.Context, s *server, id string, hangUp func(why error)) (*apitypes.Result, error) {
	var body apitypes.Exec
	patient, done := context.WithTimeout(ctx, firstLimit)
	kind, first, err := a.conn.Read(patient)
	done()
	if err != nil {
		return nil, fmt.Errorf("no exec came: %v: %w", err, cerrdefs.ErrInvalidArgument)
	}
	if kind != websocket.MessageText {
		return nil, fmt.Errorf("the first message has to be the exec as JSON text: %w", cerrdefs.ErrInvalidArgument)
	}
	if err := decodeJSON(first, &body); err != nil {
		return nil, err
	}
	r, err := request(body)
	if err != nil {
		return nil, err
	}
	stdin := newStdinQueue(func(n int) {
		_ = a.event(writing, apitypes.Event{Type: apitypes.EventStdin, Bytes: n})
	})
	defer stdin.end(io.EOF)
	if r.Stdin == nil {
		r.Stdin = stdin
	}
	signals := make(chan syscall.Signal, 16)
	r.Signals = signals
	r.Started = func() { _ = a.event(writing, apitypes.Event{Type: apitypes.EventStart}) }
	go func() {
		// Whatever ends the input other than its own eof means that the caller has gone, or does not
		// keep to the rules.
		err := a.receive(ctx, stdin, signals)
		stdin.end(err)
		hangUp(err)
	}()
	ended, err := s.service.Exec(ctx, id, r, func(stream dockerexec.Stream, data []byte) error {
		return a.output(writing, stream, data)
	})
	if err != nil {
		return nil, err
	}
	if ended.CommandFault != "" {
		_ = a.output(writing, dockerexec.Stderr, []byte(ended.CommandFault+"\n"))
	}
	exit := result(ended)
	return &exit, nil
}

// receive handles what the caller sends, until the connection ends.
func (a *attached) receive(ctx context.Context, stdin *stdinQueue, signals chan<- syscall.Signal) error {
	for {
		kind, message, err := a.conn.Read(ctx)
		if err != nil {
			return err
		}
		if kind == websocket.MessageBinary {
			if len(message) == 0 || message[0] != apitypes.ChannelStdin {
				return fmt.Errorf("a binary message has to begin with the channel of stdin: %w", cerrdefs.ErrInvalidArgument)
			}
			if err := stdin.put(message[1:]); err != nil {
				return err
			}
			continue
		}
		var input apitypes.Input
		if err := decodeJSON(message, &input); err != nil {
			return err
		}
		switch input.Type {
		case apitypes.InputEOF:
			stdin.end(io.EOF)
		case apitypes.InputSignal:
			signal, err := parseSignal(input.Signal)
			if err != nil {
				return err
			}
			select {
			case signals <- signal:
			default: // nobody takes them: the command has not started, or has ended
			}
		default:
			return fmt.Errorf("input of unknown type %q: %w", input.Type, cerrdefs.ErrInvalidArgument)
		}
	}
}

func (a *attached) output(ctx context.Context, stream dockerexec.Stream, data []byte) error {
	channel := apitypes.ChannelStdout
	if stream == dockerexec.Stderr {
		channel = apitypes.ChannelStderr
	}
	a.frame = append(append(a.frame[:0], channel), data...)
	return a.conn.Write(ctx, websocket.MessageBinary, a.frame)
}

func (a *attached) event(ctx context.Context, e apitypes.Event) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return a.conn.Write(ctx, websocket.MessageText, text)
}

// signalNames are those that a caller may send.
var signalNames = []string{"HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "CONT", "STOP", "TSTP", "WINCH"}

func parseSignal(name string) (syscall.Signal, error) {
	for _, known := range signalNames {
		if name == known || name == "SIG"+known {
			return unix.SignalNum("SIG" + known), nil
		}
	}
	return 0, fmt.Errorf("signal %q is not one of %s: %w", name, strings.Join(signalNames, ", "), cerrdefs.ErrInvalidArgument)
}
