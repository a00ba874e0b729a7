package guard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// acceptor accepts TLS connections and deals them out to the pollers. It works on the first one's goroutine:
// if all of them listened, each connection would wake all.
type acceptor struct {
	pollers []*poller
	socket  int
	turn    int  // whose connection the next is
	resting bool // because there was an error, which would only be repeated
}

const (
	// acceptShare is how many connections are accepted before others get their turn.
	acceptShare = 16
	// acceptPause is what a guard that is out of descriptors waits for some to be closed.
	acceptPause = 100 * time.Millisecond
)

// newAcceptor takes connections from l, which stays its caller's to close.
func newAcceptor(pollers []*poller, l *net.TCPListener) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	a := &acceptor{pollers: pollers}
	var failed error
	err = raw.Control(func(fd uintptr) { a.socket, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("cannot take over the TLS listener: %w", err)
	}
	first := pollers[0]
	first.acceptor = a
	// What is accepted has the listener's options.
	rawKeepAlive(a.socket)
	rawSetInt(a.socket, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	return first.watch(a.socket, 0, unix.EPOLLIN|unix.EPOLLET)
}

// accept takes what waits to be accepted.
func (a *acceptor) accept() {
	if a.resting {
		return
	}
	for range acceptShare {
		fd, source, err := rawAccept(a.socket)
		switch {
		case err == nil:
			a.deal(fd, source)
		case errors.Is(err, errAgain):
			return
		case errors.Is(err, unix.ECONNABORTED):
		default:
			// Out of descriptors, most likely: connections that end will bring some back.
			a.pollers[0].guard.cfg.Logger.Error().Err(err).Msg("guard cannot accept a TLS connection")
			a.resting = true
			time.AfterFunc(acceptPause, func() {
				a.pollers[0].post(func() {
					a.resting = false
					a.accept()
				})
			})
			return
		}
	}
	a.pollers[0].post(a.accept)
}

// deal gives a connection to the poller whose turn it is, within its client's limits: so those bound what waits
// for a poller, too.
func (a *acceptor) deal(fd int, source netip.AddrPort) {
	next := a.pollers[a.turn%len(a.pollers)]
	l := newLink(next, fd, source.Addr())
	if l == nil {
		rawReset(fd)
		return
	}
	a.turn++
	if next == a.pollers[0] {
		l.begin()
	} else if !next.post(l.begin) {
		l.abandon()
	}
}
