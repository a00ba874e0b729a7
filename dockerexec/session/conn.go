package session

import (
	"net"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// Conn is an agent's stdin, to write to, and its stdout, to read from. Its deadlines are those of
// net.Conn. Whoever gets one closes it, until it has become a session.
type Conn interface {
	net.Conn
	// Stderr returns the beginning of what has come on stderr so far, without blocking.
	Stderr() string
}

// greeter is a Conn whose agent has yet to greet.
type greeter struct {
	Conn
	opening []byte // what stdout began with, until the agent has greeted
	greeted bool
}

// maxOpening bounds what is kept of an opening, in bytes.
const maxOpening = 4 << 10

func (g *greeter) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if !g.greeted {
		g.opening = append(g.opening, p[:min(n, maxOpening-len(g.opening))]...)
	}
	return n, err
}

// dockerError returns what Docker has written to stdout in place of the agent's greeting: its own
// error if it could not start the exec, when it was already answering the request. It is empty if
// an agent began to greet.
func (g *greeter) dockerError() string {
	if len(g.opening) == 0 || wire.Kind(g.opening[0]) == wire.KindHello {
		return ""
	}
	_ = g.SetReadDeadline(time.Now().Add(time.Second)) // Docker closes the connection
	for buffer := make([]byte, maxOpening); len(g.opening) < maxOpening; {
		if _, err := g.Read(buffer); err != nil {
			break
		}
	}
	return strings.TrimSpace(string(g.opening))
}
