package guard

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// pipe is what splice(2) moves bytes through. held is how many it has.
type pipe struct{ r, w, held int }

const (
	pipeSize  = 256 << 10
	pipesKept = 64
	// relayShare is how many times a stream's pipe is filled or emptied before others get their turn: enough to
	// find that there was no more than one pipe takes.
	relayShare = 3
)

// stream is one direction of a link. It has a pipe only while there is something to move: a pipe is two
// descriptors and 16 KiB of kernel memory, and most connections are idle.
type stream struct {
	from, to *end
	pipe     *pipe
	ended    bool
}

// relay moves bytes both ways until both have ended, or one has failed. The end of one direction is passed on
// and leaves the other open.
func (l *link) relay() {
	moved, more := false, false
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
	case l.down.ended && l.up.ended:
		l.finish()
		return
	case moved && (l.down.ended || l.up.ended):
		l.poller.within(l, l.flow.guard.cfg.Limits.HalfClosedIdle, (*link).reset)
	}
	if more && !l.eager {
		l.eager = true
		l.poller.eager = append(l.poller.eager, l)
	}
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
			err = s.empty()
			moved = moved || err == nil && s.to.writable
		default:
			err = p.fill(s)
			moved = moved || s.ended
		}
		if err != nil {
			return moved, false, err
		}
	}
}

func (p *poller) fill(s *stream) (err error) {
	if s.pipe == nil {
		if s.pipe, err = p.takePipe(); err != nil {
			return err
		}
	}
	n, err := rawSplice(s.from.fd, s.pipe.w, pipeSize)
	switch {
	case errors.Is(err, errAgain):
		s.from.readable = false
	case err != nil:
		return err
	case n == 0:
		s.ended = true
		rawShutdown(s.to.fd, unix.SHUT_WR)
	default:
		s.pipe.held = n
	}
	return nil
}

func (s *stream) empty() error {
	n, err := rawSplice(s.pipe.r, s.to.fd, s.pipe.held)
	if errors.Is(err, errAgain) {
		s.to.writable = false
		return nil
	}
	s.pipe.held -= n
	return err
}

// takePipe takes a pipe that nobody uses now, or makes one.
func (p *poller) takePipe() (*pipe, error) {
	if n := len(p.spare); n > 0 {
		one := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return one, nil
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, fmt.Errorf("cannot make a pipe: %w", err)
	}
	// If that is refused, the kernel's default size does as well, only slower.
	_, _ = unix.FcntlInt(uintptr(ends[1]), unix.F_SETPIPE_SZ, pipeSize)
	return &pipe{r: ends[0], w: ends[1]}, nil
}

// returnPipe takes a stream's pipe away, if it has one. One that is not empty is not used again.
func (p *poller) returnPipe(s *stream) {
	one := s.pipe
	if one == nil {
		return
	}
	s.pipe = nil
	if one.held == 0 && len(p.spare) < pipesKept {
		p.spare = append(p.spare, one)
		return
	}
	one.close()
}

func (p *pipe) close() {
	rawClose(p.r)
	rawClose(p.w)
}
