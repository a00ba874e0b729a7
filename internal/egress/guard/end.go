package guard

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

// end is one side of a link: a socket.
type end struct {
	link *link
	fd   int // -1 when there is none
	// serial tells it from others that had the same descriptor.
	serial int32
	// readable and writable say that the kernel has not said otherwise since the last event.
	readable, writable bool
	// gone says that the peer has ended its half or all of the connection, broken that nothing gets there.
	gone, broken bool
	// unsent is what is still to be sent.
	unsent []byte
}

// errAgain means that there is nothing now.
const errAgain = unix.EAGAIN

// happened takes note of an event, and has the link do what it can.
func (e *end) happened(events uint32) {
	const bad = unix.EPOLLERR | unix.EPOLLHUP
	e.readable = e.readable || events&(unix.EPOLLIN|unix.EPOLLRDHUP|bad) != 0
	e.writable = e.writable || events&(unix.EPOLLOUT|bad) != 0
	e.gone = e.gone || events&(unix.EPOLLRDHUP|bad) != 0
	e.broken = e.broken || events&bad != 0
	e.link.poller.turns.add(e.link)
}

// Read returns errAgain when there is nothing now.
func (e *end) Read(p []byte) (int, error) {
	if !e.readable {
		return 0, errAgain
	}
	n, err := rawRead(e.fd, p)
	switch {
	case err != nil:
		e.readable = false
	case n == 0 && len(p) > 0:
		err = io.EOF
	}
	return n, err
}

// send reports whether all is sent.
func (e *end) send() (bool, error) {
	for len(e.unsent) > 0 {
		n, err := rawSend(e.fd, e.unsent)
		if errors.Is(err, errAgain) {
			e.writable = false
			return false, nil
		}
		if err != nil {
			return false, err
		}
		e.unsent = e.unsent[n:]
	}
	e.unsent = nil
	return true, nil
}
