package dockerexec

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/api/types"

	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// execConn is the agent's stdin and stdout as one connection. It reads what Docker's attach stream carries for stdout,
// and keeps stderr aside.
type execConn struct {
	net.Conn
	buffered *bufio.Reader
	rest     int // bytes of the current frame that are still to come

	// opening is what stdout began with, until the agent has greeted.
	opening []byte
	greeted bool

	mu     sync.Mutex
	stderr strings.Builder
}

// maxStderr bounds what is kept of the agent's stderr, and of an opening, in bytes.
const maxStderr = 4 << 10

func newExecConn(h types.HijackedResponse) *execConn {
	return &execConn{Conn: h.Conn, buffered: bufio.NewReaderSize(h.Reader, 64<<10)}
}

// Read returns stdout's bytes. A frame from Docker has a header of 8 bytes: the stream, three zeros and the length,
// most significant byte first (Engine API, "attach to a container").
func (c *execConn) Read(p []byte) (int, error) {
	for c.rest == 0 {
		var header [8]byte
		if _, err := io.ReadFull(c.buffered, header[:]); err != nil {
			return 0, err
		}
		length := int(binary.BigEndian.Uint32(header[4:]))
		switch header[0] {
		case 1:
			c.rest = length
		case 2:
			if err := c.keepStderr(length); err != nil {
				return 0, err
			}
		default:
			return 0, fmt.Errorf("unexpected frame from Docker for stream %d", header[0])
		}
	}
	n, err := c.buffered.Read(p[:min(len(p), c.rest)])
	c.rest -= n
	if !c.greeted {
		c.opening = append(c.opening, p[:min(n, maxStderr-len(c.opening))]...)
	}
	return n, err
}

// dockerError returns what Docker has written to stdout in place of the agent's greeting: its own error if it could
// not start the exec, when it was already answering the request. It is empty if an agent began to greet.
func (c *execConn) dockerError() string {
	if len(c.opening) == 0 || wire.Kind(c.opening[0]) == wire.KindHello {
		return ""
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Second)) // Docker closes the connection
	for buffer := make([]byte, maxStderr); len(c.opening) < maxStderr; {
		if _, err := c.Read(buffer); err != nil {
			break
		}
	}
	return strings.TrimSpace(string(c.opening))
}

func (c *execConn) keepStderr(length int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	keep := min(length, maxStderr-c.stderr.Len())
	if _, err := io.CopyN(&c.stderr, c.buffered, int64(keep)); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, c.buffered, int64(length-keep))
	return err
}

// complaint returns what the agent, or the runtime in its place, has written to stderr.
func (c *execConn) complaint() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.TrimSpace(c.stderr.String())
}
