package process

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// serve takes connections until the listener closes. One more than there may be waits, and whoever comes to the
// same port waits behind it to be accepted.
func (o *owner) serve(listener *net.TCPListener, port int, log zerolog.Logger) {
	for {
		conn, err := listener.AcceptTCP()
		switch {
		case err == nil && o.take():
			o.work.Go(func() {
				defer o.give()
				o.relay(conn, port, log)
			})
		case err == nil:
			_ = conn.SetLinger(0)
			_ = conn.Close()
			return
		case errors.Is(err, net.ErrClosed):
			return
		default: // Out of descriptors, say.
			log.Warn().Err(err).Msg("a connection to an exposed port is not accepted")
			if !o.pause(100 * time.Millisecond) {
				return
			}
		}
	}
}

// take waits for room for a connection; it reports false when the owner has gone.
func (o *owner) take() bool {
	select {
	case o.slots <- struct{}{}:
	case <-o.ctx.Done():
		return false
	}
	for !o.all.Take(o.user, 1) {
		if !o.pause(20 * time.Millisecond) {
			<-o.slots
			return false
		}
	}
	return true
}

func (o *owner) give() {
	o.all.Give(o.user, 1)
	<-o.slots
}

// pause is false when the owner has gone meanwhile.
func (o *owner) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-o.ctx.Done():
		return false
	}
}

// relay is the life of one connection. One that comes to nobody is broken, as if nobody listened, and so is one
// whose service ends: until both directions have ended well, the kernel breaks it when it closes it.
func (o *owner) relay(outside *net.TCPConn, port int, log zerolog.Logger) {
	_ = outside.SetLinger(0)
	inside, err := o.dial(o.ctx, port)
	if err != nil {
		log.Debug().Err(err).Msg("a connection to an exposed port comes to nobody")
		_ = outside.Close()
		return
	}
	var broken atomic.Bool
	abort := func() {
		broken.Store(true)
		_ = outside.Close()
		inside.Abort()
	}
	defer context.AfterFunc(o.ctx, abort)()
	carry := func(to carrier, from io.Reader) {
		if err := copyAll(to, from); err != nil {
			abort()
		}
	}
	var both sync.WaitGroup
	both.Go(func() { carry(inside, outside) })
	both.Go(func() { carry(outside, inside) })
	both.Wait()
	if !broken.Load() {
		_ = outside.SetLinger(-1)
		_ = inside.Close()
	}
	_ = outside.Close()
}

// stallLimit is how long either end may leave what was sent to it unread. Without it, one that has gone while the
// other takes nothing would never be noticed.
const stallLimit = 5 * time.Minute

// carrier takes one direction of a connection.
type carrier interface {
	io.Writer
	CloseWrite() error
	SetWriteDeadline(time.Time) error
}

// copyAll copies one direction to its end, and passes that on.
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
