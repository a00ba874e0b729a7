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
				o.relay(conn, port, log)
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
// listened, and so is one whose service ends: until both directions have ended well, closing it
// makes the kernel break it.
func (o *owner) relay(outside *net.TCPConn, port int, log zerolog.Logger) {
	_ = outside.SetLinger(0)
	inside, err := o.dial(o.ctx, port)
	if err != nil {
		log.Debug().Err(err).Msg("cannot connect to the program behind an exposed port")
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
