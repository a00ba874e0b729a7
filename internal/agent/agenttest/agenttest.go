// Package agenttest is agents that run nothing: the other end of what the service says to a
// container's agent, for tests of those who talk to one.
package agenttest

import (
	"net"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/mux"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// Commands is a session's agent: it answers the service's Hello and has run do each command, one
// after the other, until run returns false or the connection ends. It closes conn.
func Commands(conn net.Conn, run func(stream net.Conn, start wire.Start) (goesOn bool)) {
	defer conn.Close()
	if wire.ReadMessage(conn, wire.KindHello, &wire.Hello{}) != nil ||
		wire.WriteMessage(conn, wire.KindHello, wire.Hello{Version: wire.Version}) != nil {
		return
	}
	session, err := yamux.Server(conn, mux.Config(100), nil)
	if err != nil {
		return
	}
	defer session.Close()
	if _, err := session.AcceptStream(); err != nil { // for control
		return
	}
	for goesOn := true; goesOn; {
		stream, err := session.AcceptStream()
		if err != nil {
			return
		}
		var start wire.Start
		if wire.ReadMessage(stream, wire.KindStart, &start) == nil {
			goesOn = run(stream, start)
		}
		if goesOn {
			_ = stream.Close()
		}
	}
}

// Exit has Commands end each command at once.
func Exit(exit wire.Exit) func(net.Conn, wire.Start) bool {
	return func(stream net.Conn, _ wire.Start) bool {
		_ = wire.WriteMessage(stream, wire.KindExit, exit)
		return true
	}
}

// Requests is a persistent container's agent: it greets, and answers each request, one after the
// other, until the connection ends; nil leaves a request without an answer. It closes conn.
func Requests(conn net.Conn, answer func(control.Request) *control.Answer) {
	defer conn.Close()
	session, err := Greet(conn, control.Version)
	if err != nil {
		return
	}
	defer session.Close()
	for {
		stream, err := session.AcceptStream()
		if err != nil {
			return
		}
		var r control.Request
		if wire.ReadMessage(stream, wire.KindRequest, &r) == nil {
			if a := answer(r); a != nil {
				_ = wire.WriteMessage(stream, wire.KindAnswer, *a)
			}
		}
		_ = stream.Close()
	}
}

// Greet begins what an agent says that is not asked to, and returns its end of the streams.
func Greet(conn net.Conn, version int) (*yamux.Session, error) {
	if err := wire.WriteMessage(conn, wire.KindHello, wire.Hello{Version: version}); err != nil {
		return nil, err
	}
	return yamux.Server(conn, mux.Config(100), nil)
}
