// Package relay copies between two connections, and passes on how each direction ends.
package relay

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Conn is a connection whose two directions end independently.
type Conn interface {
	io.Reader
	io.Writer
	CloseWrite() error
	SetWriteDeadline(time.Time) error
}

// stallLimit is how long either end may leave what was sent to it unread. Without it, nobody would
// ever notice that one end has gone while the other takes nothing.
const stallLimit = 5 * time.Minute

// Both copies in both directions until both have ended, passes their ends on, and reports whether
// both have ended well. If either breaks it calls abort, which must break both connections: no peer
// may take what has come so far for everything.
func Both(a, b Conn, abort func()) (whole bool) {
	var broken atomic.Bool
	carry := func(to, from Conn) {
		if err := copyAll(to, from); err != nil {
			broken.Store(true)
			abort()
		}
	}
	var both sync.WaitGroup
	both.Go(func() { carry(a, b) })
	both.Go(func() { carry(b, a) })
	both.Wait()
	return !broken.Load()
}

// copyAll copies one direction to its end, and passes the end on.
func copyAll(to, from Conn) error {
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
