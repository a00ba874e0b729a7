package guard

import (
	"bytes"
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

// introduce sends the hello on. Nothing else of the client's goes on before the server's first answer is known,
// so that no second hello slips through early.
func (l *link) introduce() {
	l.origin.unsent = l.hello.raw[:l.hello.at]
	_, err := l.origin.send()
	// This and the options only now, while the server works.
	l.flow.decide(l.name, &refusal{verdict: Allowed, reason: reasonAllowed})
	if err != nil {
		l.reset()
		return
	}
	rawSetInt(l.origin.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	rawKeepAlive(l.origin.fd)
	l.next = (*link).answered
	l.poller.within(l, l.flow.guard.cfg.Limits.AnswerTimeout, (*link).reset)
	l.answered()
}

// answered passes the server's first answer back. If that is a HelloRetryRequest, the client says hello once
// more, and must name the same host.
func (l *link) answered() {
	if l.left() || !l.sent(&l.origin) {
		return
	}
	l.forgetHello()
	if !l.readAnswer() {
		return
	}
	l.client.unsent = l.answer
	if isRetryRequest(l.answer) {
		l.next = (*link).hearAgain
		l.poller.within(l, l.flow.guard.cfg.Limits.HelloTimeout, func(l *link) { l.refuseAgain("", malformed(reasonTooSlow)) })
	} else {
		l.origin.unsent = l.hello.raw
		l.next = (*link).passOn
	}
	l.step()
}

// forgetHello keeps only what the client has sent behind its hello: the server's side has that now. A second
// hello would begin there.
func (l *link) forgetHello() {
	if l.hello.at == 0 {
		return
	}
	rest := bytes.Clone(l.hello.raw[l.hello.at:])
	l.hello = &hello{limit: l.hello.limit, room: l.hello.room, raw: rest, skipsOthers: true}
	l.flow.forget(cap(rest))
}

// left ends a link whose client has gone before the server has answered: no TLS client can do anything with an
// answer after it has ended its half. It reports whether it was so.
func (l *link) left() bool {
	if l.client.gone {
		l.reset()
	}
	return l.client.gone
}

// answerMost is how much of a server's first answer is read before it is passed on.
const answerMost = 4 << 10

// readAnswer reads enough of what a server says to recognise a HelloRetryRequest. What is shorter because the
// server has ended, or is no handshake, is an answer as well. It reports false while there is none.
func (l *link) readAnswer() bool {
	for {
		n, err := l.origin.Read(l.poller.scratch[:answerMost-len(l.answer)])
		l.answer = append(l.answer, l.poller.scratch[:n]...)
		switch {
		case errors.Is(err, errAgain):
			return false
		case errors.Is(err, io.EOF):
			return true
		case err != nil:
			l.reset()
			return false
		case l.answer[0] != recordHandshake || len(l.answer) >= retryRandomAt+len(retryRandom):
			return true
		}
	}
}

// hearAgain passes the answer on and reads the second hello.
func (l *link) hearAgain() {
	if !l.sent(&l.client) {
		return
	}
	name, refused, done := l.asked()
	if !done {
		return
	}
	if refused == nil && name != l.name {
		refused = &refusal{verdict: Denied, reason: reasonOtherName}
	}
	if refused != nil {
		l.refuseAgain(name, refused)
		return
	}
	l.origin.unsent = l.hello.raw
	l.next = (*link).passOn
	l.poller.within(l, l.flow.guard.cfg.Limits.AnswerTimeout, (*link).reset)
	l.passOn()
}

func (l *link) refuseAgain(name string, r *refusal) {
	// One that leaves does not like the answer, which is its right.
	if r.reason != reasonCutShort {
		l.flow.decide(name, r)
	}
	l.reset()
}

// passOn sends what both are still to get of the introduction.
func (l *link) passOn() {
	switch {
	case l.client.broken:
		l.reset()
		return
	case !l.sent(&l.client) || !l.sent(&l.origin):
		return
	}
	l.hello, l.answer, l.addrs = nil, nil, nil
	l.flow.forget(0)
	l.poller.untimed(l)
	user := l.flow.client.User()
	l.down = stream{from: &l.origin, to: &l.client, user: user}
	l.up = stream{from: &l.client, to: &l.origin, user: user, up: true}
	l.next = (*link).relay
	l.relay()
}

// sent sends what an end is still to get. It reports false while there is more, or if that failed.
func (l *link) sent(e *end) bool {
	sent, err := e.send()
	if err != nil {
		l.reset()
	}
	return sent
}

// retryRandom is the ServerHello.random that makes it a HelloRetryRequest (RFC 8446, 4.1.3).
var retryRandom = []byte{
	0xCF, 0x21, 0xAD, 0x74, 0xE5, 0x9A, 0x61, 0x11, 0xBE, 0x1D, 0x8C, 0x02, 0x1E, 0x65, 0xB8, 0x91,
	0xC2, 0xA2, 0x11, 0x16, 0x7A, 0xBB, 0x8C, 0x5E, 0x07, 0x9E, 0x09, 0xE2, 0xC8, 0xA8, 0x33, 0x9C,
}

// retryRandomAt is where the random is: behind the record's and the message's header and version.
const retryRandomAt = recordHeader + 4 + 2

func isRetryRequest(answer []byte) bool {
	return len(answer) >= retryRandomAt && bytes.HasPrefix(answer[retryRandomAt:], retryRandom)
}
