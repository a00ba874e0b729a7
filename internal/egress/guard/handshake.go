package guard

import (
	"bytes"
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/egress/nonblock"
	"github.com/daycare-run/sandbox/internal/egress/poller"
)

// forwardHello sends the hello on. Nothing else from the client is sent on before the server's first answer is
// known, so that no second hello slips through early.
func (s *session) forwardHello() {
	s.Origin.Unsent = s.hello.raw[:s.hello.at]
	_, err := s.Origin.Send()
	// This and the options come only now, while the server works.
	s.flow.decide(s.name, &refusal{verdict: decisions.Allowed, reason: reasonAllowed})
	if err != nil {
		s.Reset()
		return
	}
	nonblock.SetInt(s.Origin.FD(), unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	nonblock.KeepAlive(s.Origin.FD())
	s.next = (*session).readAnswer
	s.Within(s.limits().AnswerTimeout, nil)
	s.readAnswer()
}

// readAnswer passes the server's first answer back. If that is a HelloRetryRequest, the client says hello once
// more, and must name the same host.
func (s *session) readAnswer() {
	if s.clientGone() || !s.sent(&s.Origin) {
		return
	}
	s.forgetHello()
	if !s.answerComplete() {
		return
	}
	s.Client.Unsent = s.answer
	if isRetryRequest(s.answer) {
		s.next = (*session).readSecondHello
		s.Within(s.limits().HelloTimeout, func() { s.refuseSecond("", malformed(reasonTooSlow)) })
	} else {
		s.Origin.Unsent = s.hello.raw
		s.next = (*session).flush
	}
	s.Step()
}

// forgetHello drops the hello, which the server has now, and keeps only what the client has sent after it. A
// second hello would begin there.
func (s *session) forgetHello() {
	if s.hello.at == 0 {
		return
	}
	rest := bytes.Clone(s.hello.raw[s.hello.at:])
	s.hello = &hello{limit: s.hello.limit, room: s.hello.room, raw: rest, skipsOthers: true}
	s.flow.free(cap(rest))
}

// answerMost is how much of a server's first answer is read before it is passed on.
const answerMost = 4 << 10

// answerComplete reads enough of a server's answer to recognise a HelloRetryRequest. An answer that is shorter because
// the server has ended, or that is no handshake, is complete too. It reports false while there is no complete answer.
func (s *session) answerComplete() bool {
	for {
		n, err := s.Origin.Read(s.Loop().Scratch()[:answerMost-len(s.answer)])
		s.answer = append(s.answer, s.Loop().Scratch()[:n]...)
		switch {
		case errors.Is(err, nonblock.Again):
			return false
		case errors.Is(err, io.EOF):
			return true
		case err != nil:
			s.Reset()
			return false
		case s.answer[0] != recordHandshake || len(s.answer) >= retryRandomAt+len(retryRandom):
			return true
		}
	}
}

// readSecondHello passes the answer on and reads the second hello.
func (s *session) readSecondHello() {
	if !s.sent(&s.Client) {
		return
	}
	name, refused, done := s.helloName()
	if !done {
		return
	}
	if refused == nil && name != s.name {
		refused = &refusal{verdict: decisions.Denied, reason: reasonOtherName}
	}
	if refused != nil {
		s.refuseSecond(name, refused)
		return
	}
	s.Origin.Unsent = s.hello.raw
	s.next = (*session).flush
	s.Within(s.limits().AnswerTimeout, nil)
	s.flush()
}

func (s *session) refuseSecond(name string, r *refusal) {
	// A client that leaves does not like the answer, which is its right.
	if r.reason != reasonCutShort {
		s.flow.decide(name, r)
	}
	s.Reset()
}

// flush sends what both sides still have to get of the hellos and the answer.
func (s *session) flush() {
	switch {
	case s.Client.Broken():
		s.Reset()
		return
	case !s.sent(&s.Client) || !s.sent(&s.Origin):
		return
	}
	s.hello, s.answer, s.addrs = nil, nil, nil
	s.flow.free(0)
	s.Untimed()
	s.next = (*session).relay
	s.relay()
}

// relay passes bytes both ways until the end.
func (s *session) relay() {
	if ended, err := s.Splice(s.limits().HalfClosedIdle); err != nil {
		s.Reset()
	} else if ended {
		s.deliver()
	}
}

// sent sends what a socket still has to send. It reports false if there is more to send, or sending failed.
func (s *session) sent(socket *poller.Socket) bool {
	sent, err := socket.Send()
	if err != nil {
		s.Reset()
	}
	return sent
}

// retryRandom is the ServerHello.random that makes it a HelloRetryRequest (RFC 8446, 4.1.3).
var retryRandom = []byte{
	0xCF, 0x21, 0xAD, 0x74, 0xE5, 0x9A, 0x61, 0x11, 0xBE, 0x1D, 0x8C, 0x02, 0x1E, 0x65, 0xB8, 0x91,
	0xC2, 0xA2, 0x11, 0x16, 0x7A, 0xBB, 0x8C, 0x5E, 0x07, 0x9E, 0x09, 0xE2, 0xC8, 0xA8, 0x33, 0x9C,
}

// retryRandomAt is where the random is: after the record's and the message's header and the version.
const retryRandomAt = recordHeader + 4 + 2

func isRetryRequest(answer []byte) bool {
	return len(answer) >= retryRandomAt && bytes.HasPrefix(answer[retryRandomAt:], retryRandom)
}
