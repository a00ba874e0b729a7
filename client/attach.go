package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/apitypes"
)

// Streams are what an attached exec reads and writes.
type Streams struct {
	// Stdin is read until its end; nil means none. The call does not wait for a Read that blocks,
	// so a terminal's stdin may still be being read when it returns.
	Stdin io.Reader
	// Stdout and Stderr receive output as it comes; nil drops it.
	Stdout, Stderr io.Writer
	// Signals are names such as INT, sent to the command's process group.
	Signals <-chan string
}

// Attach runs a command with its output as it comes, and returns at its end. When ctx ends, the
// connection is cut and the command with it.
func (c *Client) Attach(ctx context.Context, id string, e apitypes.Exec, s Streams) (apitypes.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, response, err := websocket.Dial(ctx, "ws://sandboxd"+sandboxPath(id)+"/exec", &websocket.DialOptions{
		HTTPClient: c.http, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if response != nil {
			return apitypes.Result{}, fmt.Errorf("the service answered %s", response.Status)
		}
		return apitypes.Result{}, c.unreachable(err)
	}
	defer conn.CloseNow()
	conn.SetReadLimit(-1)
	a := &attachment{conn: conn, streams: s, credit: apitypes.StdinWindow}
	a.more.L = &a.mu
	if err := a.send(ctx, e); err != nil {
		return apitypes.Result{}, err
	}
	if e.Stdin == "" {
		go a.feed(ctx)
	}
	if s.Signals != nil {
		go a.relaySignals(ctx)
	}
	return a.receive(ctx)
}

// attachment is one exec's connection.
type attachment struct {
	conn    *websocket.Conn
	streams Streams

	mu     sync.Mutex
	more   sync.Cond // on mu: credit has grown, or ended is set
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

// feed sends stdin, as fast as the command takes it.
func (a *attachment) feed(ctx context.Context) {
	buffer := make([]byte, 1+32<<10)
	buffer[0] = apitypes.ChannelStdin
	for a.streams.Stdin != nil {
		n, err := a.streams.Stdin.Read(buffer[1:])
		if n > 0 && (!a.spend(n) || a.conn.Write(ctx, websocket.MessageBinary, buffer[:1+n]) != nil) {
			return
		}
		if err != nil {
			break
		}
	}
	_ = a.send(ctx, apitypes.Input{Type: apitypes.InputEOF})
}

// spend waits for credit for n bytes; false means that the exec has ended.
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

func (a *attachment) relaySignals(ctx context.Context) {
	for {
		select {
		case name, open := <-a.streams.Signals:
			if !open {
				return
			}
			_ = a.send(ctx, apitypes.Input{Type: apitypes.InputSignal, Signal: name})
		case <-ctx.Done():
			return
		}
	}
}

// receive passes output on until the exit.
func (a *attachment) receive(ctx context.Context) (apitypes.Result, error) {
	defer a.earn(0, true)
	buffer := make([]byte, 64<<10)
	for {
		kind, message, err := a.conn.Reader(ctx)
		if err != nil {
			return apitypes.Result{}, a.lost(ctx, err)
		}
		if kind == websocket.MessageBinary {
			if err := a.pass(message, buffer); err != nil {
				return apitypes.Result{}, a.lost(ctx, err)
			}
			continue
		}
		var event apitypes.Event
		if err := json.UnmarshalRead(message, &event); err != nil {
			return apitypes.Result{}, fmt.Errorf("cannot read the service's event: %w", err)
		}
		switch {
		case event.Type == apitypes.EventStdin:
			a.earn(event.Bytes, false)
		case event.Type == apitypes.EventExit && event.Result != nil:
			return *event.Result, nil
		case event.Type == apitypes.EventError && event.Error != nil:
			return apitypes.Result{}, &Error{Kind: event.Error.Kind, Message: event.Error.Message}
		}
	}
}

// pass copies one output message to where it belongs.
func (a *attachment) pass(message io.Reader, buffer []byte) error {
	var channel [1]byte
	if _, err := io.ReadFull(message, channel[:]); err != nil {
		return err
	}
	to := a.streams.Stdout
	if channel[0] == apitypes.ChannelStderr {
		to = a.streams.Stderr
	}
	if to == nil {
		to = io.Discard
	}
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, message, buffer)
	return err
}

func (a *attachment) lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) || websocket.CloseStatus(err) != -1 {
		return fmt.Errorf("the connection to the service was lost while the command ran: %w", err)
	}
	return err
}
