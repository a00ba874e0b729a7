package poller

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/egress/nonblock"
)

// Socket is one side of a session.
type Socket struct {
	// Unsent is what Send still has to send.
	Unsent []byte

	session *Session
	fd      int // -1 when there is none
	// serial tells it from others that had the same descriptor.
	serial int32
	// readable and writable say that the last event allowed it, and the kernel has not refused it since.
	readable, writable bool
	// gone says that the peer has ended its half or all of the connection, broken that nothing reaches it any more.
	gone, broken bool
}

// handle notes an event, and queues the session for its user's turn.
func (s *Socket) handle(events uint32) {
	const bad = unix.EPOLLERR | unix.EPOLLHUP
	s.readable = s.readable || events&(unix.EPOLLIN|unix.EPOLLRDHUP|bad) != 0
	s.writable = s.writable || events&(unix.EPOLLOUT|bad) != 0
	s.gone = s.gone || events&(unix.EPOLLRDHUP|bad) != 0
	s.broken = s.broken || events&bad != 0
	s.session.loop.schedule.add(s.session)
}

// FD returns the descriptor, -1 when there is none.
func (s *Socket) FD() int { return s.fd }

// Gone reports whether the peer has ended its half of the connection, or all of it.
func (s *Socket) Gone() bool { return s.gone }

// Broken reports whether nothing reaches the peer any more.
func (s *Socket) Broken() bool { return s.broken }

// Writable reports whether something may be sent or, for a socket that connects, whether connecting has ended.
func (s *Socket) Writable() bool { return s.writable }

// Read reads what has arrived. It returns nonblock.Again when there is nothing now.
func (s *Socket) Read(p []byte) (int, error) {
	if !s.readable {
		return 0, nonblock.Again
	}
	n, err := nonblock.Read(s.fd, p)
	switch {
	case err != nil:
		s.readable = false
	case n == 0 && len(p) > 0:
		err = io.EOF
	}
	return n, err
}

// Send sends what is Unsent. It reports whether all of it is sent.
func (s *Socket) Send() (bool, error) {
	for len(s.Unsent) > 0 {
		n, err := nonblock.Send(s.fd, s.Unsent)
		if errors.Is(err, nonblock.Again) {
			s.writable = false
			return false, nil
		}
		if err != nil {
			return false, err
		}
		s.Unsent = s.Unsent[n:]
	}
	s.Unsent = nil
	return true, nil
}
