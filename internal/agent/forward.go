//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// maxForwarded bounds the connections that are forwarded at a time.
const maxForwarded = 1000

// dialLimit is how long a program inside may take to accept a connection.
const dialLimit = 10 * time.Second

// Forward passes connections on to TCP ports of the container's own loopback, over stdin and stdout, until
// these close or break. It ends nothing but the connections.
func Forward() error {
	debug.SetGCPercent(50)
	conn, err := takeStdio()
	if err != nil {
		return err
	}
	if err := harden(); err != nil {
		return err
	}
	if err := wire.WriteMessage(conn, wire.KindHello, wire.Hello{Version: wire.ForwardVersion}); err != nil {
		return fmt.Errorf("cannot greet the service: %w", err)
	}
	mux, err := yamux.Server(conn, wire.Mux(maxForwarded), nil)
	if err != nil {
		return fmt.Errorf("cannot open the session: %w", err)
	}
	for {
		stream, err := mux.AcceptStream()
		if err != nil {
			return sessionError(err)
		}
		go forward(stream)
	}
}

// forward is the life of one connection.
func forward(stream *yamux.Stream) {
	conn, err := dialFor(stream)
	if err != nil {
		_ = wire.WriteMessage(stream, wire.KindDialed, wire.Dialed{Fault: err.Error()})
		_ = stream.Close()
		return
	}
	if err := wire.WriteMessage(stream, wire.KindDialed, wire.Dialed{}); err != nil {
		_ = stream.Reset()
		_ = conn.Close()
		return
	}
	relay(stream, conn)
}

// stallLimit is how long a program may leave what was sent to it unread, and a service too.
const stallLimit = 5 * time.Minute

// relay copies both ways until both have ended, and closes what it was given. When either breaks, both do: the
// other end of each is not to take what has come for the whole. That goes for the end of the agent, too: until both
// have ended well the kernel breaks the connection when it closes it.
func relay(stream *yamux.Stream, conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	carried := wire.Carry(stream)
	abort := func() {
		_ = stream.Reset()
		_ = conn.Close()
	}
	var broken atomic.Bool
	copyTo := func(to carrier, from io.Reader) {
		if err := copyAll(to, from); err != nil {
			broken.Store(true)
			abort()
		}
	}
	var both sync.WaitGroup
	both.Go(func() { copyTo(conn, carried) })
	both.Go(func() { copyTo(carried, conn) })
	both.Wait()
	if !broken.Load() {
		_ = conn.SetLinger(-1)
	}
	_ = conn.Close()
	_ = stream.Close()
}

// carrier takes one direction of a connection.
type carrier interface {
	io.Writer
	CloseWrite() error
	SetWriteDeadline(time.Time) error
}

// copyAll copies one direction, and passes its end on.
func copyAll(to carrier, from io.Reader) error {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if deadline := to.SetWriteDeadline(time.Now().Add(stallLimit)); deadline != nil {
			return deadline
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return to.CloseWrite()
		case err != nil:
			return err
		}
	}
}

func dialFor(stream *yamux.Stream) (*net.TCPConn, error) {
	var dial wire.Dial
	if err := wire.ReadMessage(stream, wire.KindDial, &dial); err != nil {
		return nil, err
	}
	if dial.Port < 1 || dial.Port > math.MaxUint16 {
		return nil, errors.New("no such port")
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	defer cancel()
	return dialLoopback(ctx, dial.Port)
}
