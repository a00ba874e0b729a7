//go:build linux

package agent

import (
	"context"
	"fmt"
	"net"
	"runtime/debug"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/mux"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/relay"
)

// maxForwarded bounds the connections that are forwarded at a time.
const maxForwarded = 1000

// dialLimit is how long a program inside may take to accept a connection.
const dialLimit = 10 * time.Second

// Forward forwards connections from stdin and stdout to TCP ports of the container's own loopback,
// until stdin or stdout closes or breaks. It ends nothing but the connections.
func Forward() error {
	debug.SetGCPercent(50)
	conn, err := takeStdio()
	if err != nil {
		return err
	}
	if err := harden(); err != nil {
		return err
	}
	if err := wire.WriteMessage(conn, wire.KindHello,
		wire.Hello{Version: wire.ForwardVersion}); err != nil {
		return fmt.Errorf("cannot greet the service: %w", err)
	}
	mux, err := yamux.Server(conn, mux.Config(maxForwarded), nil)
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

// forward serves one connection.
func forward(stream *yamux.Stream) {
	conn, err := dialFor(stream)
	if answered := wire.AnswerPort(stream, err); answered != nil && err == nil {
		_ = stream.Reset()
		_ = conn.Close()
		return
	}
	if err != nil {
		_ = stream.Close()
		return
	}
	carry(stream, conn)
}

// carry relays a connection until it has ended, and closes it. Unless it has ended well, closing it
// makes the kernel break it off, also when the agent's own end closes it.
func carry(stream *yamux.Stream, conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	whole := relay.Both(conn, wire.Carry(stream), func() {
		_ = stream.Reset()
		_ = conn.Close()
	})
	if whole {
		_ = conn.SetLinger(-1)
	}
	_ = conn.Close()
	_ = stream.Close()
}

func dialFor(stream *yamux.Stream) (*net.TCPConn, error) {
	port, err := wire.ReadPort(stream)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	defer cancel()
	return dialLoopback(ctx, port)
}
