package guard

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// stream is one direction of a link. It has a pipe only while there is something to move: a pipe is two
// descriptors and 16 KiB of kernel memory, and most connections are idle.
type stream struct {
	from, to *end
	user     string
	up       bool // to the origin
	pipe     *pipe
	ended    bool
}

// relayShare is how many times a stream's pipe is filled or emptied before others get their turn: enough to
// find that there was no more than one pipe takes.
const relayShare = 3

// closeDelay is what a server has to end a connection whose client has ended it, before we do: who ends it first
// keeps the port for a minute, and a server has more of them. It is enough for the way there and back.
const closeDelay = 250 * time.Millisecond

// relay moves bytes both ways until both have ended, or one has failed. The end of one direction is passed on
// and leaves the other open.
func (l *link) relay() {
	moved, more := false, false
	clientEnded := l.up.ended
	for _, s := range []*stream{&l.down, &l.up} {
		did, could, err := l.poller.move(s)
		if err != nil {
			// Not an orderly end, so the other side must not take it for one.
			l.reset()
			return
		}
		moved, more = moved || did, more || could
	}
	switch {
	case l.down.ended && l.up.ended, l.client.broken && !moved:
		l.endRelay()
		return
	case l.up.ended && !clientEnded:
		l.poller.within(l, closeDelay, (*link).endUp)
	case moved && (l.down.ended || l.endedFirst):
		l.poller.within(l, l.flow.guard.cfg.Limits.HalfClosedIdle, (*link).reset)
	}
	if more {
		l.continues = true
		l.poller.turns.add(l)
	}
}

// endRelay ends a link of which there is nothing more to move, or whose client takes nothing any more.
func (l *link) endRelay() {
	if l.down.ended && l.up.ended {
		l.finish()
		return
	}
	l.reset()
}

// endUp passes the client's end on to a server that has not ended the connection by itself.
func (l *link) endUp() {
	rawShutdown(l.origin.fd, unix.SHUT_WR)
	l.endedFirst = true
	l.poller.within(l, l.flow.guard.cfg.Limits.HalfClosedIdle, (*link).reset)
}

// move passes bytes on as long as there are any and it is the stream's turn. more says that its turn has ended
// first.
func (p *poller) move(s *stream) (moved, more bool, err error) {
	for turn := 0; ; turn++ {
		full := s.pipe != nil && s.pipe.held > 0
		switch {
		case full && !s.to.writable:
			return moved, false, nil
		case !full && (s.ended || !s.from.readable):
			p.returnPipe(s)
			return moved, false, nil
		case turn == relayShare:
			return moved, true, nil
		case full:
			err = p.empty(s)
			moved = moved || err == nil && s.to.writable
		default:
			did := false
			did, err = p.next(s)
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

// next takes what there is: into a pipe if there is one to be had, else by a copy. It reports whether anything
// has got on.
func (p *poller) next(s *stream) (bool, error) {
	if s.pipe == nil {
		if s.pipe = p.takePipe(s.user); s.pipe == nil {
			return p.copy(s)
		}
	}
	n, err := rawSplice(s.from.fd, s.pipe.w, pipeSize)
	switch {
	case errors.Is(err, errAgain):
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

// copy passes on what there is without a pipe. What is not taken at once stays where it is.
func (p *poller) copy(s *stream) (bool, error) {
	n, err := rawPeek(s.from.fd, p.scratch[:])
	switch {
	case errors.Is(err, errAgain):
		s.from.readable = false
		return false, nil
	case err != nil:
		return false, err
	case n == 0:
		s.end()
		return true, nil
	}
	sent, err := rawSend(s.to.fd, p.scratch[:n])
	switch {
	case errors.Is(err, errAgain):
		s.to.writable = false
		return false, nil
	case err != nil:
		return false, err
	}
	p.turns.did(sent)
	return true, rawSkip(s.from.fd, sent)
}

func (p *poller) empty(s *stream) error {
	n, err := rawSplice(s.pipe.r, s.to.fd, s.pipe.held)
	if errors.Is(err, errAgain) {
		s.to.writable = false
		return nil
	}
	s.pipe.held -= n
	p.turns.did(n)
	return err
}

// end passes an end on: the server's at once.
func (s *stream) end() {
	s.ended = true
	if !s.up {
		rawShutdown(s.to.fd, unix.SHUT_WR)
	}
}
