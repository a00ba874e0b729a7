package poller

import (
	"sync/atomic"
	"time"
)

// Session is a connection of a client and, once there is one, the connection to its origin. Its Handler embeds it.
type Session struct {
	Client, Origin Socket
	// EndedFirst says that this side ended the connection to the origin first: the kernel keeps its port.
	EndedFirst bool
	// AtOnce says that the client's end is passed on at once: the server may wait for it.
	AtOnce bool

	loop     *Loop
	handler  Handler
	begun    bool
	closed   atomic.Bool
	deadline time.Time // when late is called
	late     func()
	down, up stream // from the origin and to it
	queued   bool   // for its user's turn
	// continues says that the last turn ended before the session had done all it could.
	continues bool
}

// Init makes s a session of l for a client's connection. Any goroutine may call it.
func (s *Session) Init(l *Loop, fd int, h Handler) {
	s.loop, s.handler = l, h
	s.Client.fd, s.Origin.fd = fd, -1
}

// Begin makes the loop serve a session that it did not accept, whose origin is connected already. Any goroutine may call it.
func (s *Session) Begin(origin int) {
	s.Origin.fd = origin
	s.start(false)
}

// start makes the loop begin the session; here says that the caller is on the loop's goroutine.
func (s *Session) start(here bool) {
	if here {
		s.begin()
	} else if !s.loop.Post(s.begin) {
		s.handler.Reset() // the loop has ended
	}
}

// begin begins the session, unless it was reset meanwhile.
func (s *Session) begin() {
	if s.closed.Load() {
		return
	}
	s.begun = true
	s.loop.sessions[s] = true
	s.handler.Step()
	for _, socket := range []*Socket{&s.Client, &s.Origin} {
		if !s.closed.Load() && socket.fd >= 0 && socket.session == nil && s.Watch(socket, socket.fd) != nil {
			s.handler.Reset()
		}
	}
}

func (s *Session) step() {
	if !s.closed.Load() {
		s.handler.Step()
	}
}

// Loop returns the session's loop.
func (s *Session) Loop() *Loop { return s.loop }

// Closed reports whether the session has ended. Any goroutine may call it.
func (s *Session) Closed() bool { return s.closed.Load() }

// Close ends the session and closes its sockets with how. It reports false if the session had ended already.
func (s *Session) Close(how func(fd int)) bool {
	if !s.closed.CompareAndSwap(false, true) {
		return false
	}
	if !s.begun { // nothing of it is in the loop, which may have ended
		how(s.Client.fd)
		if s.Origin.fd >= 0 {
			how(s.Origin.fd)
		}
		return true
	}
	s.Disconnect(&s.Client, how)
	s.Disconnect(&s.Origin, how)
	s.loop.returnPipe(&s.up)
	s.loop.returnPipe(&s.down)
	delete(s.loop.timed, s)
	delete(s.loop.sessions, s)
	return true
}

// Watch makes a descriptor one of the session's sockets.
func (s *Session) Watch(socket *Socket, fd int) error {
	s.loop.serial++
	*socket = Socket{session: s, fd: fd, serial: s.loop.serial}
	s.loop.sockets[int32(fd)] = socket
	return s.loop.watch(fd, s.loop.serial, allEvents)
}

// Disconnect closes a socket, if it is open.
func (s *Session) Disconnect(socket *Socket, how func(fd int)) {
	if socket.fd >= 0 {
		delete(s.loop.sockets, int32(socket.fd))
		how(socket.fd)
		socket.fd = -1
	}
}

// Within calls late after limit, or up to 50 ms later, unless Within or Untimed is called before. If late is nil,
// the session is reset.
func (s *Session) Within(limit time.Duration, late func()) {
	s.deadline, s.late = s.loop.now.Add(limit), late
	s.loop.timed[s] = true
	s.loop.startTicking()
}

// Untimed cancels Within.
func (s *Session) Untimed() { delete(s.loop.timed, s) }

// InPipes returns how many bytes the session's pipes hold.
func (s *Session) InPipes() (n int) {
	for _, one := range []*stream{&s.up, &s.down} {
		if one.pipe != nil {
			n += one.pipe.held
		}
	}
	return n
}
