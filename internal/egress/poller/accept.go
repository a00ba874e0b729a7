package poller

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/egress/nonblock"
)

// listener accepts connections and deals them out to the loops. It works on the first loop's goroutine: if all
// loops listened, each connection would wake all of them.
type listener struct {
	loops   []*Loop
	socket  int
	accepts Acceptor
	failed  func(error)
	next    int  // which loop gets the next connection
	resting bool // after an error, which would only be repeated
}

// Accept makes the loops serve the connections of a listener in turn. It is called before they run. The caller closes
// from; the loops have a descriptor of their own. failed is called with the error of a failed accept: most likely
// descriptors have run out, and connections that end will free some.
func Accept(loops []*Loop, from *net.TCPListener, accepts Acceptor, failed func(error)) error {
	raw, err := from.SyscallConn()
	if err != nil {
		return err
	}
	l := &listener{loops: loops, accepts: accepts, failed: failed}
	var dupErr error
	err = raw.Control(func(fd uintptr) { l.socket, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(err, dupErr); err != nil {
		return fmt.Errorf("cannot take over a listener: %w", err)
	}
	loops[0].listener = l
	// Accepted sockets inherit the listener's options.
	nonblock.KeepAlive(l.socket)
	nonblock.SetInt(l.socket, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	return loops[0].watch(l.socket, 0, unix.EPOLLIN|unix.EPOLLET)
}

// accept accepts the connections that wait.
func (l *listener) accept() {
	if l.resting {
		return
	}
	for range acceptShare {
		fd, source, err := nonblock.Accept(l.socket)
		switch {
		case err == nil:
			loop := l.loops[l.next%len(l.loops)]
			if s := l.accepts(loop, fd, source); s != nil {
				l.next++
				s.start(loop == l.loops[0])
			}
		case errors.Is(err, nonblock.Again):
			return
		case errors.Is(err, unix.ECONNABORTED):
		default:
			l.failed(err)
			l.resting = true
			time.AfterFunc(acceptPause, func() {
				l.loops[0].Post(func() {
					l.resting = false
					l.accept()
				})
			})
			return
		}
	}
	l.loops[0].Post(l.accept)
}
