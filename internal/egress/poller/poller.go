// Package poller serves TCP sessions of two sockets each, a client's and an origin's, on few goroutines: a Loop waits
// with epoll for events on any of its sockets, and makes the session take its next step.
//
// Why it exists: a goroutine for each direction of each connection would be simpler to read. But setting up a connection
// through a proxy means waiting four times and working for a few microseconds each time, for which Go's scheduler does
// more work than the proxy; and an idle connection would keep two stacks. Here an idle session is two descriptors and a
// struct. Bytes are spliced in the kernel, through a pipe that a session has only while there is something to move.
//
// What it must never do: block. Whatever runs on a loop's goroutine keeps all its sessions waiting, so a handler goes as
// far as it can and returns; what takes longer is done elsewhere and comes back by Post. It must not let one user's
// sessions keep another's waiting: turns go by user, however many sessions each has. It must not touch a session on a
// goroutine other than its loop's. And it knows nothing of names, protocols or policies: whether a session may connect,
// and where to, is its handler's decision.
package poller

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Handler decides what a session does. Its methods must not block. Step and Reset are called on the loop's goroutine;
// Reset of a session that never began may be called on any goroutine.
type Handler interface {
	// User returns the user whose turn the session takes.
	User() string
	// Step does what can be done without waiting. It is called first when the session begins, and then whenever
	// something has happened to one of its sockets.
	Step()
	// Reset ends the session at once. It calls Session.Close.
	Reset()
}

// Acceptor makes a session of l from an accepted connection. It returns nil if it has ended the connection, or has handed
// it to somebody else. It is called on the first loop's goroutine.
type Acceptor func(l *Loop, fd int, source netip.Addr) *Session

const (
	// tick is by how much a deadline may be late.
	tick = 50 * time.Millisecond
	// acceptShare is how many connections are accepted before the sessions get their turn.
	acceptShare = 16
	// acceptPause is how long nothing is accepted after an error.
	acceptPause = 100 * time.Millisecond

	allEvents = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET
)
