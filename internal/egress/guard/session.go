package guard

import (
	"context"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/budget"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/egress/nonblock"
	"github.com/daycare-run/sandbox/internal/egress/poller"
)

// session is a client's TLS connection, or one that is carried, together with the connection to its origin. It implements
// poller.Handler. next is its next step, which goes as far as it can without waiting.
type session struct {
	poller.Session
	flow *flow
	life context.Context // the guard's
	next func(*session)

	hello     *hello
	name      string // that the hello asks for
	addrs     []netip.Addr
	connectBy time.Time // after this no further address is tried
	last      *refusal  // why no address could be connected to so far
	cancel    context.CancelFunc
	answer    []byte         // the server's first
	lingering int            // how many bytes a refused client may still send
	to        netip.AddrPort // the origin's address, while a port of ours is taken for it
	left      budget.Undelivered
	leave     func() // called when it has ended
}

// newSession makes the session of an accepted connection, or returns nil if it has ended the connection or handed it to
// the relay. It does the work of a poller.Acceptor.
func (g *Guard) newSession(ctx context.Context, l *poller.Loop, fd int, source netip.Addr) *session {
	to := nonblock.Local(fd)
	if g.direct(source, to, g.cfg.TLSPort, func() (*net.TCPConn, error) { return give(fd) }) {
		return nil
	}
	s := &session{flow: &flow{guard: g, port: g.cfg.TLSPort, to: to}, life: ctx, next: (*session).begin}
	s.Init(l, fd, s)
	s.flow.cut = func() { l.Post(s.Reset) }
	s.leave = func() { g.endpoints.leave(s.flow) }
	if !s.flow.enter(ctx, fd, source) {
		nonblock.Reset(fd)
		return nil
	}
	return s
}

// give turns a socket into a connection of package net.
func give(fd int) (*net.TCPConn, error) {
	file := os.NewFile(uintptr(fd), "")
	defer file.Close()           // not later, by the garbage collector: the number may be in use again then
	c, err := net.FileConn(file) // which has a descriptor of its own
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// User returns the client's user.
func (s *session) User() string { return s.flow.endpoint.User() }

// Step takes the next step.
func (s *session) Step() { s.next(s) }

// Reset cuts the session off; finish ends it in good order.
func (s *session) Reset()  { s.close(nonblock.Reset) }
func (s *session) finish() { s.close(nonblock.Close) }

func (s *session) close(how func(fd int)) {
	if !s.Close(how) {
		return
	}
	if s.cancel != nil {
		s.cancel()
	}
	s.givePort()
	s.leave()
}

// deliver ends a session whose two sides have ended, once they have received everything: until then the session counts.
func (s *session) deliver() {
	nonblock.Shutdown(s.Origin.FD(), unix.SHUT_WR)
	left := budget.Unsent(s.Client.FD()) + budget.Unsent(s.Origin.FD())
	waits, late := s.left.Waits(left, s.Loop().Now(), s.limits().HalfClosedIdle)
	switch {
	case late:
		s.Reset()
	case waits:
		s.next = (*session).deliver
		s.Within(budget.DeliveryPause, s.deliver)
	default:
		s.finish()
	}
}

func (s *session) limits() *Limits { return &s.flow.guard.cfg.Limits }

func (s *session) begin() {
	s.hello = &hello{limit: s.limits().HelloBytes, room: s.flow.keep}
	s.next = (*session).readHello
	s.Within(s.limits().HelloTimeout, s.tooSlow)
}

// readHello reads the first hello.
func (s *session) readHello() {
	name, refused, done := s.helloName()
	if !done {
		return
	}
	s.name = name
	if refused == nil && !s.flow.asksFor(name) {
		refused = &refusal{verdict: decisions.Denied, reason: reasonNotAllowed}
	}
	s.flow.guard.endpoints.decided(s.flow)
	if refused != nil {
		s.refuse(refused)
		return
	}
	s.resolve()
}

func (s *session) tooSlow() {
	s.flow.guard.endpoints.decided(s.flow)
	s.refuse(malformed(reasonTooSlow))
}

// helloName reads a hello and returns its name. done is false while there is more to come.
func (s *session) helloName() (name string, refused *refusal, done bool) {
	complete, refused := s.hello.read(&s.Client, s.Loop().Scratch()[:helloShare])
	if complete {
		name, refused = serverName(s.hello.message)
	}
	return name, refused, complete || refused != nil
}

// resolve finds the addresses of an allowed name.
func (s *session) resolve() {
	if s.clientGone() {
		return
	}
	cfg := &s.flow.guard.cfg
	if cfg.Known != nil {
		if addrs, ok := cfg.Known(s.name); ok {
			s.resolved(addrs, nil)
			return
		}
	}
	s.next = func(s *session) { s.clientGone() }
	s.Untimed()
	ctx, cancel := context.WithCancel(s.life)
	s.cancel = cancel
	s.flow.guard.running.Go(func() {
		defer cancel()
		addrs, err := s.flow.resolve(ctx, s.name)
		s.Loop().Post(func() {
			switch {
			case s.Closed():
			case s.life.Err() != nil:
				s.Reset() // the guard ends, which is no verdict
			default:
				s.resolved(addrs, err)
			}
		})
	})
}

func (s *session) resolved(addrs []netip.Addr, err error) {
	s.last = unconnected(addrs, err)
	if err == nil {
		s.addrs = addrs
	}
	s.connectBy = s.Loop().Now().Add(s.limits().ConnectTotal)
	s.connect()
}

// connect connects to the next address that is allowed, or gives up.
func (s *session) connect() {
	for len(s.addrs) > 0 && s.Loop().Now().Before(s.connectBy) {
		addr := s.addrs[0].Unmap()
		s.addrs = s.addrs[1:]
		if !s.flow.mayConnect(addr) {
			continue
		}
		if err := s.dial(netip.AddrPortFrom(addr, s.flow.port)); err != nil {
			s.failed(err)
			continue
		}
		s.next = (*session).connecting
		limit := min(s.limits().ConnectTimeout, s.connectBy.Sub(s.Loop().Now()))
		s.Within(limit, func() { s.failed(syscall.ETIMEDOUT); s.connect() })
		return
	}
	s.flow.decide(s.name, s.last)
	if s.last.verdict == decisions.Denied {
		s.alert(alertAccessDenied)
	} else {
		// What the program would have seen without the guard.
		s.Reset()
	}
}

func (s *session) dial(to netip.AddrPort) error {
	if !s.flow.guard.cfg.Budget.Ports.Take(s.User(), to) {
		return errPorts
	}
	s.to = to
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	nonblock.DelayAck(fd)
	nonblock.BoundOrigin(fd, s.flow.buffers)
	if err := nonblock.Connect(fd, to); err != nil && err != unix.EINPROGRESS {
		nonblock.Close(fd)
		return err
	}
	return s.Watch(&s.Origin, fd)
}

// givePort gives the origin's port back, if one is taken.
func (s *session) givePort() {
	if s.to.IsValid() {
		s.flow.guard.cfg.Budget.Ports.Give(s.User(), s.to, s.EndedFirst)
		s.to = netip.AddrPort{}
	}
}

func (s *session) failed(err error) {
	s.Disconnect(&s.Origin, nonblock.Close)
	s.givePort()
	s.last = unreachable(err)
}

func (s *session) connecting() {
	if s.clientGone() || !s.Origin.Writable() {
		return
	}
	if err := nonblock.Error(s.Origin.FD()); err != nil {
		s.failed(err)
		s.connect()
		return
	}
	s.forwardHello()
}

// clientGone ends a session whose client has gone before the server has answered: no TLS client can do anything with
// an answer after it has ended its half. It reports whether the client has gone.
func (s *session) clientGone() bool {
	if s.Client.Gone() {
		s.Reset()
	}
	return s.Client.Gone()
}
