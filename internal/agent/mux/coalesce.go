package mux

import (
	"encoding/binary"
	"net"
	"sync"
	"time"
)

// Coalesce lets frames of yamux that only open, acknowledge or close a stream wait for the frame
// that comes next, and go out with it in one write. Each write on a session wakes Docker, the
// runtime's shim and the other end; so a small command costs two of them instead of six.
//
// Frames wait for limit at the longest. With a limit of 0 they wait for the next frame however
// long that takes: right for an end that closes a stream only when the other has all of it.
func Coalesce(conn net.Conn, limit time.Duration) net.Conn {
	return &coalescer{Conn: conn, limit: limit}
}

type coalescer struct {
	net.Conn
	limit time.Duration

	mu      sync.Mutex // held while writing
	waiting []byte
	timer   *time.Timer // runs flush; nil without a limit
}

// maxWaiting is how many bytes may wait.
const maxWaiting = 1 << 10

func (c *coalescer) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if canWait(p) && len(c.waiting)+len(p) <= maxWaiting {
		if len(c.waiting) == 0 && c.limit > 0 {
			c.startTimer()
		}
		c.waiting = append(c.waiting, p...)
		return len(p), nil
	}
	if len(c.waiting) == 0 {
		return c.Conn.Write(p)
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	before := len(c.waiting)
	c.waiting = append(c.waiting, p...)
	n, err := c.Conn.Write(c.waiting)
	if c.waiting = c.waiting[:0]; cap(c.waiting) > 8*maxWaiting {
		c.waiting = nil
	}
	return max(n-before, 0), err
}

func (c *coalescer) startTimer() {
	if c.timer == nil {
		c.timer = time.AfterFunc(c.limit, c.flush)
		return
	}
	c.timer.Reset(c.limit)
}

// flush sends what waits. A connection that fails is found by the next write, or by its reader.
func (c *coalescer) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) > 0 {
		_, _ = c.Conn.Write(c.waiting)
		c.waiting = c.waiting[:0]
	}
}

// A yamux header is 12 bytes: version, type, flags (2), stream (4), length (4), most significant
// byte first. A window update that adds nothing to the window carries flags alone.
const (
	muxHeaderSize   = 12
	muxWindowUpdate = 1
	muxReset        = 8
)

func canWait(frame []byte) bool {
	return len(frame) == muxHeaderSize && frame[1] == muxWindowUpdate &&
		binary.BigEndian.Uint16(frame[2:])&muxReset == 0 && binary.BigEndian.Uint32(frame[8:]) == 0
}
