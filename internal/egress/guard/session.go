package guard

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"time"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// session is a client's TLS connection together with the connection to its origin.
type session struct {
	*flow
	life   context.Context // ends with the flow
	client *end
	origin *end // once there is one
	to     netip.AddrPort
	hello  *hello
	name   string // that the hello asks for
	// endedFirst says that this side ended the connection to the origin first.
	endedFirst bool
}

// serveTLS sets a connection up, and leaves the rest to goroutines that need less stack.
func (g *Guard) serveTLS(ctx context.Context, f *flow, client *end) {
	s := &session{flow: f, life: f.context(ctx), client: client}
	s.hello = &hello{limit: s.limits().HelloBytes, room: s.keep}
	switch {
	case !s.readHello():
		s.leave()
	case s.isRead():
		s.read()
	case s.setUp():
		g.running.Go(s.relay)
	default:
		s.leave()
	}
}

// setUp goes as far as the server's first answer. It reports false if the session has been refused,
// or has ended.
func (s *session) setUp() bool {
	stop := s.untilClientLeaves()
	answer, refused := s.askOrigin()
	stop()
	switch {
	case s.life.Err() != nil: // which is no verdict
		return false
	case refused == nil:
		return s.passOn(answer)
	}
	s.decide(s.name, refused)
	if refused.verdict == decisions.Denied {
		s.alert(alertAccessDenied)
	} else {
		s.abort() // what the program would have seen without the guard
	}
	return false
}

// leave ends the session, in good order unless it was aborted.
func (s *session) leave() {
	s.close()
	if s.origin != nil {
		s.giveSocket(s.to, s.endedFirst)
	}
	s.guard.clients.leave(s.flow)
}

// relay passes bytes both ways until the end.
func (s *session) relay() {
	defer s.leave()
	r := relay{owned: &s.owned, pipes: s.guard.pipes, client: s.client, origin: s.origin,
		idle: s.limits().HalfClosedIdle}
	r.run(s.life)
	s.endedFirst = r.endedFirst
}

func (s *session) limits() *Limits { return &s.guard.cfg.Limits }

// readHello reads the first hello. It reports false if the session has been refused, or has ended.
func (s *session) readHello() bool {
	name, refused := s.helloName()
	s.name = name
	if refused == nil && !s.asksFor(name) {
		refused = &refusal{verdict: decisions.Denied, reason: reasonNotAllowed}
	}
	s.guard.clients.decided(s.flow)
	if refused != nil && s.life.Err() == nil {
		s.refuse(refused)
	}
	return refused == nil
}

// helloName reads a hello and returns its name.
func (s *session) helloName() (name string, refused *refusal) {
	_ = s.client.SetReadDeadline(time.Now().Add(s.limits().HelloTimeout))
	complete, refused := s.hello.add(nil)
	for !complete && refused == nil {
		err := s.client.receive(helloShare, func(p []byte) { complete, refused = s.hello.add(p) })
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return "", malformed(reasonTooSlow)
		case err != nil:
			return "", malformed(reasonCutShort)
		}
	}
	if refused != nil {
		return "", refused
	}
	return serverName(s.hello.message)
}

// askOrigin connects to the name and returns the server's first answer, or why it could not
// connect. It aborts the session if there is no answer.
func (s *session) askOrigin() (answer []byte, refused *refusal) {
	c, to, refused := s.connect(s.life, s.name)
	if refused != nil {
		return nil, refused
	}
	s.origin, s.to = s.guard.newEnd(c, s.who.User(), &s.owned), to
	answer, err := s.sayHello()
	if err != nil {
		s.abort()
	}
	return answer, nil
}

// untilClientLeaves aborts the session if the client leaves before stop is called: no TLS client
// can do anything with an answer after it has ended its half.
func (s *session) untilClientLeaves() (stop func()) {
	_ = s.client.SetReadDeadline(time.Time{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if s.client.onEvent(gone) == nil {
			s.abort()
		}
	}()
	return func() {
		_ = s.client.SetReadDeadline(time.Unix(1, 0))
		<-ended
		_ = s.client.SetReadDeadline(time.Time{})
	}
}
