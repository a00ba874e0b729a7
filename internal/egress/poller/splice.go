package poller

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/egress/nonblock"
)

// stream is one direction of a session. It has a pipe only while there is something to move: a pipe is two
// descriptors and 16 KiB of kernel memory, and most connections are idle.
type stream struct {
	from, to *Socket
	up       bool // to the origin
	pipe     *pipe
	ended    bool
}

const (
	// spliceShare is how many times a stream's pipe is filled or emptied before others get their turn: enough to
	// find that there was no more than one pipe takes.
	spliceShare = 3
	// closeDelay is how long a server has to end a connection whose client has ended it, before we do: the side that
	// ends it first keeps the port for a minute, and a server has more of them. It is enough for a round trip.
	closeDelay = 250 * time.Millisecond
)

var errBroken = errors.New("the client takes nothing any more")

// Splice moves bytes both ways as far as they go, and has to be called again whenever the session steps. It reports
// whether both directions have ended. The end of one is passed on and leaves the other open, which may be idle for
// halfClosedIdle before the session is reset. After an error the caller has to reset the session: the other side must
// not take that for an orderly end.
func (s *Session) Splice(halfClosedIdle time.Duration) (ended bool, err error) {
	if s.down.from == nil {
		s.down = stream{from: &s.Origin, to: &s.Client}
		s.up = stream{from: &s.Client, to: &s.Origin, up: true}
	}
	moved, more := false, false
	clientEnded := s.up.ended
	for _, one := range []*stream{&s.down, &s.up} {
		did, could, err := s.loop.move(one)
		if err != nil {
			return false, err
		}
		moved, more = moved || did, more || could
	}
	switch {
	case s.down.ended && s.up.ended:
		return true, nil
	case s.Client.broken && !moved:
		return false, errBroken
	case s.up.ended && !clientEnded && s.AtOnce:
		s.endUp(halfClosedIdle)
	case s.up.ended && !clientEnded:
		s.Within(closeDelay, func() { s.endUp(halfClosedIdle) })
	case moved && (s.down.ended || s.EndedFirst):
		s.Within(halfClosedIdle, nil)
	}
	if more {
		s.continues = true
		s.loop.schedule.add(s)
	}
	return false, nil
}

// endUp passes the client's end on to a server that has not ended the connection by itself.
func (s *Session) endUp(halfClosedIdle time.Duration) {
	nonblock.Shutdown(s.Origin.fd, unix.SHUT_WR)
	s.EndedFirst = true
	s.Within(halfClosedIdle, nil)
}

// move passes bytes on as long as there are any and it is the stream's turn. more says that the turn ended
// before the bytes.
func (l *Loop) move(s *stream) (moved, more bool, err error) {
	for turn := 0; ; turn++ {
		full := s.pipe != nil && s.pipe.held > 0
		switch {
		case full && !s.to.writable:
			return moved, false, nil
		case !full && (s.ended || !s.from.readable):
			l.returnPipe(s)
			return moved, false, nil
		case turn == spliceShare:
			return moved, true, nil
		case full:
			err = l.empty(s)
			moved = moved || err == nil && s.to.writable
		default:
			did := false
			did, err = l.fill(s)
			moved = moved || did
		}
		if err != nil {
			return moved, false, err
		}
		if s.pipe == nil && !s.ended && !s.to.writable {
			return moved, false, nil
		}
	}
}

// fill takes what there is: into a pipe if one can be had, else by copying. It reports whether anything has
// been passed on.
func (l *Loop) fill(s *stream) (bool, error) {
	if s.pipe == nil {
		if s.pipe = l.takePipe(s.from.session.handler.User()); s.pipe == nil {
			return l.copy(s)
		}
	}
	n, err := nonblock.Splice(s.from.fd, s.pipe.w, pipeSize)
	switch {
	case errors.Is(err, nonblock.Again):
		s.from.readable = false
		return false, nil
	case err != nil:
		return false, err
	case n == 0:
		s.end()
	}
	s.pipe.held = n
	return s.ended, nil
}

// copy passes on what there is without a pipe. What the receiver does not take at once stays in the sender's socket.
func (l *Loop) copy(s *stream) (bool, error) {
	n, err := nonblock.Peek(s.from.fd, l.scratch[:])
	switch {
	case errors.Is(err, nonblock.Again):
		s.from.readable = false
		return false, nil
	case err != nil:
		return false, err
	case n == 0:
		s.end()
		return true, nil
	}
	sent, err := nonblock.Send(s.to.fd, l.scratch[:n])
	switch {
	case errors.Is(err, nonblock.Again):
		s.to.writable = false
		return false, nil
	case err != nil:
		return false, err
	}
	l.schedule.did(sent)
	return true, nonblock.Skip(s.from.fd, sent)
}

func (l *Loop) empty(s *stream) error {
	n, err := nonblock.Splice(s.pipe.r, s.to.fd, s.pipe.held)
	if errors.Is(err, nonblock.Again) {
		s.to.writable = false
		return nil
	}
	s.pipe.held -= n
	l.schedule.did(n)
	return err
}

// end records the end of a stream, and passes the server's end on at once.
func (s *stream) end() {
	s.ended = true
	if !s.up {
		nonblock.Shutdown(s.to.fd, unix.SHUT_WR)
	}
}
