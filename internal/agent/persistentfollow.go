//go:build linux

package agent

import (
	"fmt"
	"io"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// follow sends a command's output until it ends or the other end leaves.
func (l *persistent) follow(stream *yamux.Stream, c *persistentCommand, f *follower) error {
	if f == nil {
		return reply(stream, control.Answer{Fault: control.FaultMany,
			Message: fmt.Sprintf("%d callers follow it already", maxFollowers)})
	}
	var unsent delivery
	left := make(chan struct{})
	gone := leaving(stream)
	go func() {
		select {
		case <-gone:
			f.stop()
		case <-left:
		}
	}()
	defer func() {
		close(left)
		f.leave(unsent)
	}()
	if err := reply(stream, control.Answer{PID: c.root.pid, Terminal: &c.terminal}); err != nil {
		return err
	}
	for {
		n, more := f.next()
		if !more {
			return errBroken
		}
		var err error
		if unsent, err = deliver(stream, n); err != nil {
			return err
		}
		switch {
		case n.cut:
			return reply(stream, control.Answer{Fault: control.FaultCut})
		case n.exit != nil:
			if err := wire.WriteMessage(stream, wire.KindExit, *n.exit); err != nil {
				return err
			}
			l.forget(c)
			return nil
		}
	}
}

// deliver sends output, and returns what it could not send.
func deliver(stream io.Writer, n delivery) (unsent delivery, err error) {
	if n.lost > 0 {
		if err := reply(stream, control.Answer{Lost: n.lost}); err != nil {
			return n, err
		}
	}
	frame := make([]byte, 0, wire.HeaderSize+keptPiece)
	for i := 0; i < len(n.pieces); {
		// Small pieces go together.
		kind, first := n.pieces[i].kind, i
		frame = append(frame[:0], 0, 0, 0, 0)
		for ; i < len(n.pieces) && n.pieces[i].kind == kind &&
			(i == first || len(frame)+len(n.pieces[i].data) <= wire.MaxData); i++ {
			frame = append(frame, n.pieces[i].data...)
		}
		h := wire.Header(kind, len(frame)-wire.HeaderSize)
		copy(frame, h[:])
		if _, err := stream.Write(frame); err != nil {
			return delivery{pieces: n.pieces[first:]}, err
		}
	}
	return delivery{}, nil
}
