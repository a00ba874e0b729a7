package process

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/relay"
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
	abort := func() {
		_ = outside.Close()
		inside.Abort()
	}
	defer context.AfterFunc(o.ctx, abort)()
	if relay.Both(inside, outside, abort) {
		_ = outside.SetLinger(-1)
		_ = inside.Close()
	}
	_ = outside.Close()
}
