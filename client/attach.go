package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/types"
)

// Streams are what an attached exec reads from and writes to.
type Streams struct {
	// Stdin is read until io.EOF; nil means none. Any other error cuts the connection and is the
	// call's, because the command would take what came before for all. The call does not wait for a
	// Read that blocks, so a terminal's stdin may still be read after it returns.
	Stdin io.Reader
	// Stdout and Stderr receive output as it arrives; nil drops it.
	Stdout, Stderr io.Writer
	// Signals are names such as INT, sent to the command's process group once it has started.
	Signals <-chan string
	// Resizes are the new sizes of the local terminal. The command has a terminal if Exec.TTY asks
	// for one.
	Resizes <-chan Size
	// Started is called when the command starts, and when the caller has reattached to one; nil for
	// none.
	Started func(Start)
	// Lost is called with how many bytes of output are no longer kept at this place, for a caller
	// who has come back; nil for none.
	Lost func(int64)
	// Refused is called with each name that the command could not reach, as soon as that is known;
	// nil for none.
	Refused func(types.Refusal)
}

// Start is what is known when a command has started.
type Start struct {
	// ExecID is for Signal and, if the exec has DetachOnDisconnect, for Reattach; empty if the exec
	// supports neither.
	ExecID string
}

// Size is a terminal's size, in characters.
type Size struct{ Rows, Cols int }

// Terminal returns the size in the form that an exec takes.
func (s Size) Terminal() *types.Terminal { return &types.Terminal{Rows: &s.Rows, Cols: &s.Cols} }

// Attach runs a command, writes its output as it arrives, and returns when the command ends. When
// ctx ends, the connection is cut and, unless e.DetachOnDisconnect is set, the command ends too. A
// command with s.Stdin or a terminal uses a WebSocket, any other a single request.
func (c *Client) Attach(ctx context.Context, id string, e types.Exec,
	s Streams) (types.Result, error) {
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	if s.Stdin == nil && e.TTY == nil {
		return c.stream(ctx, id, e, s)
	}
	a, err := c.dial(ctx, sandboxPath(id)+"/exec", s)
	if err != nil {
		return types.Result{}, err
	}
	defer a.conn.CloseNow()
	a.credit = types.StdinWindow
	var first any = e
	if s.Stdin == nil && e.Stdin == "" {
		first = withoutStdin{Exec: e}
	}
	if err := a.send(ctx, first); err != nil {
		return types.Result{}, err
	}
	if s.Stdin != nil && e.Stdin == "" {
		go a.feed(ctx, cut)
	}
	go a.relay(ctx)
	return a.receive(ctx)
}

// withoutStdin is an exec that says that no stdin will come.
type withoutStdin struct {
	types.Exec
	Stdin string `json:"stdin"`
}

// dial opens the connection of an exec. The caller closes it.
func (c *Client) dial(ctx context.Context, path string, s Streams) (*attachment, error) {
	conn, response, err := websocket.Dial(ctx, "ws://sandboxd"+path, &websocket.DialOptions{
		HTTPClient: c.http, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if response != nil {
			return nil, refusal(response)
		}
		return nil, c.unreachable(err)
	}
	conn.SetReadLimit(-1)
	a := &attachment{conn: conn, streams: s}
	a.more.L = &a.mu
	return a, nil
}

// attachment is the connection of one exec.
type attachment struct {
	conn    *websocket.Conn
	streams Streams

	mu     sync.Mutex
	more   sync.Cond // on mu: signaled when credit grows or ended is set
	credit int       // bytes of stdin that may be sent
	ended  bool
}

func (a *attachment) send(ctx context.Context, message any) error {
	text, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("cannot encode the request: %w", err)
	}
	return a.conn.Write(ctx, websocket.MessageText, text)
}

// feed sends stdin as fast as the command takes it. It cuts the connection if stdin cannot be read
// to its end.
func (a *attachment) feed(ctx context.Context, cut context.CancelCauseFunc) {
	buffer := make([]byte, 1+32<<10)
	buffer[0] = types.ChannelStdin
	for {
		n, err := a.streams.Stdin.Read(buffer[1:])
		if n > 0 && (!a.spend(n) || a.conn.Write(ctx, websocket.MessageBinary,
			buffer[:1+n]) != nil) {
			return
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			cut(fmt.Errorf("cannot read stdin: %w", err))
			return
		}
	}
	_ = a.send(ctx, types.Input{Type: types.InputEOF})
}

// spend waits until it can use n bytes of credit; it returns false if the exec has ended.
func (a *attachment) spend(n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.credit < n && !a.ended {
		a.more.Wait()
	}
	a.credit -= n
	return !a.ended
}

func (a *attachment) earn(n int, ended bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.credit += n
	a.ended = a.ended || ended
	a.more.Broadcast()
}

func (a *attachment) relay(ctx context.Context) {
	signals, resizes := a.streams.Signals, a.streams.Resizes
	for {
		select {
		case name, open := <-signals:
			if !open {
				signals = nil
				continue
			}
			_ = a.send(ctx, types.Input{Type: types.InputSignal, Signal: name})
		case size, open := <-resizes:
			if !open {
				resizes = nil
				continue
			}
			_ = a.send(ctx, types.Input{Type: types.InputResize, Rows: size.Rows, Cols: size.Cols})
		case <-ctx.Done():
			return
		}
	}
}

// receive passes output on until the exec ends.
func (a *attachment) receive(ctx context.Context) (types.Result, error) {
	defer a.earn(0, true)
	buffer := make([]byte, 64<<10)
	for {
		kind, message, err := a.conn.Reader(ctx)
		if err != nil {
			return types.Result{}, cutShort(ctx, err)
		}
		if kind == websocket.MessageBinary {
			var channel [1]byte
			_, err := io.ReadFull(message, channel[:])
			if err == nil {
				err = a.streams.pass(channel[0], message, buffer)
			}
			if err != nil {
				return types.Result{}, cutShort(ctx, err)
			}
			continue
		}
		var event types.Event
		if err := json.UnmarshalRead(message, &event); err != nil {
			return types.Result{}, cutShort(ctx,
				fmt.Errorf("cannot read the service's event: %w", err))
		}
		if event.Type == types.EventStdin {
			a.earn(event.Bytes, false)
		} else if ended, result, err := a.streams.handle(event); ended {
			return result, err
		}
	}
}

// handle passes an event on, and reports whether it was the last one of the exec.
func (s Streams) handle(event types.Event) (ended bool, result types.Result, err error) {
	switch {
	case event.Type == types.EventStart && s.Started != nil:
		s.Started(Start{ExecID: event.ExecID})
	case event.Type == types.EventLost && s.Lost != nil:
		s.Lost(event.Lost)
	case event.Type == types.EventEgress && event.Refusal != nil && s.Refused != nil:
		s.Refused(*event.Refusal)
	case event.Type == types.EventExit && event.Result != nil:
		return true, *event.Result, nil
	case event.Type == types.EventError && event.Error != nil:
		return true, result, asError(*event.Error)
	}
	return false, result, nil
}

// pass copies a channel's output to its writer.
func (s Streams) pass(channel byte, output io.Reader, buffer []byte) error {
	to := s.Stdout
	if channel == types.ChannelStderr {
		to = s.Stderr
	}
	if to == nil {
		to = io.Discard
	}
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, output, buffer)
	return err
}
