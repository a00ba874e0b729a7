package process

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/relay"
)

// serve accepts connections until the listener closes. One connection beyond the bounds waits, and
// later ones to the same port wait behind it to be accepted.
func (o *owner) serve(listener *net.TCPListener, port int, log zerolog.Logger) {
	for {
		conn, err := listener.AcceptTCP()
		switch {
		case err == nil && o.take():
			o.work.Go(func() {
				defer o.give()
				outside := fromHost{conn}
				_ = conn.SetLinger(0)
				o.relay(outside, func() (Conn, error) { return o.dial(o.ctx, port) }, log)
			})
		case err == nil:
			_ = conn.SetLinger(0)
			_ = conn.Close()
			return
		case errors.Is(err, net.ErrClosed):
			return
		default: // Out of descriptors, say.
			log.Warn().Err(err).Msg("cannot accept a connection to an exposed port")
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
	if !o.share() {
		<-o.slots
		return false
	}
	return true
}

// share waits for room among the connections of all owners; it reports false when the owner has
// gone.
func (o *owner) share() bool {
	for !o.all.Take(o.user, 1) {
		if !o.pause(20 * time.Millisecond) {
			return false
		}
	}
	return true
}

func (o *owner) give() {
	o.all.Give(o.user, 1)
	<-o.slots
}

// pause waits for d. It returns false if the owner goes meanwhile.
func (o *owner) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-o.ctx.Done():
		return false
	}
}

// relay carries one connection. A connection that reaches no program is broken, as if nothing
// listened, and so is one whose service ends.
func (o *owner) relay(outside Conn, dial func() (Conn, error), log zerolog.Logger) {
	inside, err := dial()
	if err != nil {
		log.Debug().Err(err).Msg("cannot connect to the program behind a port")
		outside.Abort()
		return
	}
	abort := func() {
		outside.Abort()
		inside.Abort()
	}
	defer context.AfterFunc(o.ctx, abort)()
	if relay.Both(inside, outside, abort) {
		_ = inside.Close()
		_ = outside.Close()
	}
}

// fromHost is a connection of a program of the host. Until both directions have ended well, closing
// it makes the kernel break it: that is what the end of the service does.
type fromHost struct{ *net.TCPConn }

func (c fromHost) Close() error {
	_ = c.SetLinger(-1)
	return c.TCPConn.Close()
}

func (c fromHost) Abort() { _ = c.TCPConn.Close() }
