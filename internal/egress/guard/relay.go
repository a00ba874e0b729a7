package guard

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/daycare-run/sandbox/internal/budget"
)

// relay passes bytes between a client and an origin until both have ended, with a goroutine for
// each direction.
type relay struct {
	*owned
	pipes          *pipes
	client, origin *end
	// atOnce says that the client's end is passed on at once: the server may wait for it.
	atOnce bool
	// idle is how long one direction may be idle once the other has ended.
	idle       time.Duration
	halfClosed atomic.Bool
	deadlines  sync.Mutex // held while they are set
	downEnded  chan struct{}
	// endedFirst says that this side ended the connection to the origin first: the kernel keeps its
	// port.
	endedFirst bool
}

// closeDelay is how long a server has to end a connection whose client has ended it, before we do:
// the side that ends it first keeps the port for a minute, and a server has more of them. It is
// enough for a round trip.
const closeDelay = 250 * time.Millisecond

var errBroken = errors.New("the client takes nothing any more")

// run returns when both directions have ended and everything is delivered: until then the flow
// counts. After an error it resets both sides: the other one must not take that for an orderly end.
func (r *relay) run(life context.Context) {
	r.downEnded = make(chan struct{})
	upEnded := make(chan error, 1)
	go func() {
		err := r.up()
		if err != nil {
			r.abort()
		}
		upEnded <- err
	}()
	err := r.pass(r.origin, r.client)
	if err != nil {
		r.abort()
	}
	close(r.downEnded)
	if err == nil {
		_ = r.client.CloseWrite()
		r.bound(r.client, r.origin)
	}
	if err = errors.Join(err, <-upEnded); err == nil {
		_ = r.origin.CloseWrite() // the server need not wait until its answer has been taken
		budget.Deliver(life, r.client.TCPConn, r.idle)
		budget.Deliver(life, r.origin.TCPConn, r.idle)
	}
}

// up passes on what the client sends, and its end.
func (r *relay) up() error {
	if err := r.pass(r.client, r.origin); err != nil {
		return err
	}
	if !r.atOnce {
		select {
		case <-r.downEnded:
			return nil
		case <-time.After(closeDelay):
		}
	}
	_ = r.origin.CloseWrite()
	r.endedFirst = true
	r.bound(r.origin, r.client)
	err := r.client.onEvent(broken)
	select {
	case <-r.downEnded:
		return nil
	default:
	}
	if err == nil {
		err = errBroken
	}
	return err
}

// bound begins to bound how long the direction that is left may be idle.
func (r *relay) bound(from, to *end) {
	r.halfClosed.Store(true)
	r.extend(from, to)
}

func (r *relay) extend(from, to *end) {
	r.deadlines.Lock()
	defer r.deadlines.Unlock()
	until := time.Now().Add(r.idle)
	_, _ = from.SetReadDeadline(until), to.SetWriteDeadline(until)
}

// pass passes bytes on until from ends.
func (r *relay) pass(from, to *end) error {
	d := direction{from: from, to: to, pipes: r.pipes}
	defer d.done()
	for {
		err := r.move(&d)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if r.halfClosed.Load() {
			r.extend(from, to)
		}
	}
}

func (r *relay) move(d *direction) error {
	if d.full && d.from == r.client {
		defer r.untilClientBreaks()()
	}
	return d.move()
}

// untilClientBreaks aborts the flow if the client resets the connection before stop is called. It
// is for while the server takes nothing: nobody reads from the client then.
func (r *relay) untilClientBreaks() (stop func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if r.client.onEvent(r.client.lost) == nil {
			r.abort()
		}
	}()
	return func() {
		r.deadlines.Lock() // a deadline that is set now would let the goroutine wait on
		defer r.deadlines.Unlock()
		_ = r.client.SetReadDeadline(time.Unix(1, 0))
		<-ended
		var until time.Time
		if r.halfClosed.Load() {
			until = time.Now().Add(r.idle)
		}
		_ = r.client.SetReadDeadline(until)
	}
}
