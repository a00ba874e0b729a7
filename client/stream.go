package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/types"
)

// stream runs a command with a single request, whose answer carries the output as it arrives.
func (c *Client) stream(ctx context.Context, id string, e types.Exec,
	s Streams) (types.Result, error) {
	response, err := c.send(ctx, http.MethodPost, sandboxPath(id)+"/exec", types.Frames, e)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return types.Result{}, err
	}
	defer response.Body.Close()
	if media := response.Header.Get("Content-Type"); media != types.Frames {
		return types.Result{},
			fmt.Errorf("the service does not stream what commands print: it answered with %q, and not with %s",
				media, types.Frames)
	}
	var header [types.FrameHeader]byte
	for buffer := make([]byte, 64<<10); ; {
		if _, err := io.ReadFull(response.Body, header[:]); err != nil {
			return types.Result{}, cutShort(ctx, err)
		}
		frame := &io.LimitedReader{R: response.Body, N: int64(binary.BigEndian.Uint32(header[4:]))}
		if header[0] != types.ChannelEvent {
			if err := s.pass(header[0], frame, buffer); err != nil {
				return types.Result{}, cutShort(ctx, err)
			}
			continue
		}
		var event types.Event
		if err := json.UnmarshalRead(frame, &event); err != nil {
			return types.Result{}, cutShort(ctx,
				fmt.Errorf("cannot read the service's event: %w", err))
		}
		if event.Type == types.EventStart {
			go c.relaySignals(ctx, id, event.ExecID, s.Signals)
		}
		if ended, result, err := s.handle(event); ended {
			return result, err
		}
	}
}

// Signal sends a signal, with a name such as INT, to the process group of a streamed exec or of one
// with DetachOnDisconnect. The error is of kind notFound if there is no such exec.
func (c *Client) Signal(ctx context.Context, id, execID, name string) error {
	return c.call(ctx, http.MethodPost, execPath(id, execID)+"/signal",
		types.ExecSignal{Signal: name}, nil)
}

// relaySignals sends signals until ctx ends. A signal that comes too late is dropped.
func (c *Client) relaySignals(ctx context.Context, id, execID string, signals <-chan string) {
	for {
		select {
		case name, open := <-signals:
			if !open {
				return
			}
			_ = c.Signal(ctx, id, execID, name)
		case <-ctx.Done():
			return
		}
	}
}

// cutShort explains why a running command has no further events.
func cutShort(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	_, cut := errors.AsType[*net.OpError](err)
	if cut || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		websocket.CloseStatus(err) != -1 {
		return fmt.Errorf("the connection to the service was lost while the command ran: %w", err)
	}
	return err
}
