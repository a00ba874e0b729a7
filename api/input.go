package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/coder/websocket"
	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/workload/attach"
)

// input is where a caller's messages go.
type input interface {
	Put(stdin []byte) error
	Tell(func(*attach.Input) error) error
}

// receive handles the caller's messages until the connection ends.
func (a *attached) receive(ctx context.Context, in input) error {
	memory := &requestMemory{of: a.memory.of, holder: a.memory.holder} // separate: the first message is held to the end
	defer memory.release()
	for {
		memory.release()
		kind, message, err := a.read(ctx, memory)
		if cerrdefs.IsResourceExhausted(err) {
			return err
		}
		if err != nil {
			return inputError(err)
		}
		if err := take(kind, message, in, memory); err != nil {
			return err
		}
	}
}

// take handles one message.
func take(kind websocket.MessageType, message []byte, in input, memory *requestMemory) error {
	if kind != websocket.MessageBinary {
		var said types.Input
		if err := decodeJSON(message, &said, memory); err != nil {
			return err
		}
		return in.Tell(func(in *attach.Input) error { return pass(said, in) })
	}
	if len(message) == 0 || message[0] != types.ChannelStdin {
		return fmt.Errorf("a binary message has to begin with the channel of stdin: %w",
			cerrdefs.ErrInvalidArgument)
	}
	return in.Put(message[1:])
}

// inputError returns why reading ended: the caller has gone, or it broke the WebSocket protocol.
// Both are the caller's doing.
func inputError(err error) error {
	var closed websocket.CloseError
	var network *net.OpError
	switch {
	case errors.As(err, &closed), errors.As(err, &network), errors.Is(err, net.ErrClosed),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, context.Canceled):
		return fmt.Errorf("the caller has gone: %.200q: %w", err, context.Canceled)
	}
	return errs.Invalid("cannot read a message of the WebSocket: %.200q", err)
}

func pass(said types.Input, in *attach.Input) error {
	switch said.Type {
	case types.InputEOF:
		in.End(io.EOF)
		return nil
	case types.InputSignal:
		signal, err := parseSignal(said.Signal)
		if err == nil {
			in.Signal(signal)
		}
		return err
	case types.InputResize:
		size, err := terminalSize("", said.Rows, said.Cols)
		if err != nil {
			return err
		}
		return in.Resize(size)
	default:
		return fmt.Errorf("input of unknown type %q: %w", said.Type, cerrdefs.ErrInvalidArgument)
	}
}

// signalNames are the signals that a caller may send.
var signalNames = []string{"HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "CONT", "STOP",
	"TSTP", "WINCH"}

func parseSignal(name string) (syscall.Signal, error) {
	for _, known := range signalNames {
		if name == known || name == "SIG"+known {
			return unix.SignalNum("SIG" + known), nil
		}
	}
	return 0, fmt.Errorf("signal %q is not one of %s: %w", name, strings.Join(signalNames, ", "),
		cerrdefs.ErrInvalidArgument)
}
