package session

import (
	"context"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// Offer has an agent listen at ports of its container's loopback, in the place of programs
// elsewhere. It is safe for concurrent use.
type Offer struct {
	session *Session
	stream  *yamux.Stream
}

// Offer begins to offer ports; there are none yet. The caller closes the Offer. ctx bounds the
// call.
func (s *Session) Offer(ctx context.Context) (*Offer, error) {
	stream, err := s.start(ctx, wire.Start{Offer: true})
	if err != nil {
		return nil, err
	}
	return &Offer{s, stream}, nil
}

// start opens a stream that begins with a Start.
func (s *Session) start(ctx context.Context, begin wire.Start) (*yamux.Stream, error) {
	stream, err := openStream(ctx, s.mux)
	if err != nil {
		return nil, err
	}
	err = stream.SetWriteDeadline(time.Now().Add(receiveLimit))
	if err == nil {
		err = wire.WriteMessage(stream, wire.KindStart, begin)
	}
	if err != nil {
		abort(stream)
		return nil, err
	}
	return stream, stream.SetWriteDeadline(time.Time{})
}

// Set changes which ports are offered, at most wire.MaxPorts, and returns those at which the agent
// listens: the others are taken by programs in the container. One call at a time. It blocks until
// the agent has answered, for 15 s at most; after an error the Offer is of no more use.
func (o *Offer) Set(ports []int) (at []int, err error) {
	if err := o.stream.SetDeadline(time.Now().Add(receiveLimit)); err != nil {
		return nil, err
	}
	if err := wire.WritePorts(o.stream, ports); err != nil {
		return nil, err
	}
	return wire.ReadPorts(o.stream)
}

// Close ends the offer; connections that were accepted stay. It does not block.
func (o *Offer) Close() { abort(o.stream) }

// Arrival is a connection to an offered port.
type Arrival struct {
	Port int // as the agent says
	PortConn
}

// Accept waits for the next connection, until ctx ends. The caller calls Answer, or Abort.
func (o *Offer) Accept(ctx context.Context) (Arrival, error) {
	stream, err := o.session.start(ctx, wire.Start{Accept: true})
	if err != nil {
		return Arrival{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = stream.SetReadDeadline(time.Unix(1, 0)) })
	port, err := wire.ReadPort(stream)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		abort(stream)
		return Arrival{}, err
	}
	return Arrival{port, PortConn{wire.Carry(stream), stream}}, nil
}

// Answer says that the connection has reached its program. Without it nothing is carried.
func (a Arrival) Answer() error {
	if err := a.Stream.SetDeadline(time.Now().Add(receiveLimit)); err != nil {
		return err
	}
	if err := wire.AnswerPort(a.Stream, nil); err != nil {
		return err
	}
	return a.Stream.SetDeadline(time.Time{})
}

// Ports asks on a stream to a container's first process at which ports programs there listen, and
// passes them on: at once, and with each change. They are as good as the agent. It blocks until each
// returns false, ctx ends, or the agent's answers do; an agent of before cannot tell. It closes the
// stream.
func Ports(ctx context.Context, stream control.Stream, each func([]int) bool) error {
	defer abort(stream)
	defer context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Unix(1, 0)) })()
	if err := stream.SetDeadline(time.Now().Add(dialLimit)); err != nil {
		return err
	}
	if err := wire.WriteMessage(stream, wire.KindRequest, control.Request{Do: control.Ports}); err != nil {
		return err
	}
	for {
		ports, err := wire.ReadPorts(stream)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case !each(ports):
			return nil
		}
		select {
		case <-time.After(portsPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := stream.SetDeadline(time.Time{}); err != nil {
			return err
		}
		if ctx.Err() != nil { // its end may have set a deadline just before
			return context.Cause(ctx)
		}
	}
}

// portsPause is the least time between two changes of ports that are passed on: an agent that tells
// more waits.
const portsPause = 100 * time.Millisecond
