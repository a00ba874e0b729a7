package guard

import (
	"bytes"
	"errors"
	"io"
	"time"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// sayHello sends the hello on and returns the server's first answer. Nothing else from the client
// is sent on before that is known, so that no second hello slips through early.
func (s *session) sayHello() (answer []byte, err error) {
	s.answerWithin(s.limits().AnswerTimeout)
	_, err = s.origin.Write(s.hello.raw[:s.hello.at])
	// This comes only now, while the server works.
	s.decide(s.name, &refusal{verdict: decisions.Allowed, reason: reasonAllowed})
	if err != nil {
		return nil, err
	}
	s.forgetHello()
	return s.readAnswer()
}

// passOn passes the server's first answer on. If that is a HelloRetryRequest, the client says hello
// once more, and must name the same host. It reports false if the session has ended.
func (s *session) passOn(answer []byte) bool {
	_, err := s.client.Write(answer)
	if err == nil && isRetryRequest(answer) {
		if !s.readSecondHello() {
			return false
		}
		s.answerWithin(s.limits().AnswerTimeout)
	}
	if err == nil {
		_, err = s.origin.Write(s.hello.raw)
	}
	if err != nil {
		s.abort()
		return false
	}
	s.hello = nil
	s.free(0)
	s.answerWithin(0)
	return true
}

// answerWithin bounds how long everything but the client's part may take; 0 means no bound.
func (s *session) answerWithin(limit time.Duration) {
	var until time.Time
	if limit > 0 {
		until = time.Now().Add(limit)
	}
	_, _ = s.origin.SetDeadline(until), s.client.SetWriteDeadline(until)
	if limit == 0 {
		_ = s.client.SetReadDeadline(until)
	}
}

// forgetHello drops the hello, which the server has now, and keeps only what the client has sent
// after it. A second hello would begin there.
func (s *session) forgetHello() {
	rest := bytes.Clone(s.hello.raw[s.hello.at:])
	s.hello = &hello{limit: s.hello.limit, room: s.hello.room, raw: rest, skipsOthers: true}
	s.free(cap(rest))
}

// maxAnswer is how much of a server's first answer is read before it is passed on.
const maxAnswer = 4 << 10

// readAnswer reads enough of a server's answer to recognise a HelloRetryRequest. An answer may be
// shorter if the server has ended, or if it is no handshake.
func (s *session) readAnswer() (answer []byte, err error) {
	for len(answer) == 0 || answer[0] == recordHandshake &&
		len(answer) < retryRandomAt+len(retryRandom) {
		err := s.origin.receive(maxAnswer-len(answer), func(p []byte) {
			answer = append(answer, p...)
		})
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	return answer, nil
}

// readSecondHello reads the second hello. It reports false if the session has ended.
func (s *session) readSecondHello() bool {
	name, refused := s.helloName()
	if refused == nil && name != s.name {
		refused = &refusal{verdict: decisions.Denied, reason: reasonOtherName}
	}
	if refused == nil {
		return true
	}
	// A client that leaves does not like the answer, which is its right.
	if refused.reason != reasonCutShort && s.life.Err() == nil {
		s.decide(name, refused)
	}
	s.abort()
	return false
}

// retryRandom is the ServerHello.random that makes it a HelloRetryRequest (RFC 8446, 4.1.3).
var retryRandom = []byte{
	0xCF, 0x21, 0xAD, 0x74, 0xE5, 0x9A, 0x61, 0x11, 0xBE, 0x1D, 0x8C, 0x02, 0x1E, 0x65, 0xB8, 0x91,
	0xC2, 0xA2, 0x11, 0x16, 0x7A, 0xBB, 0x8C, 0x5E, 0x07, 0x9E, 0x09, 0xE2, 0xC8, 0xA8, 0x33, 0x9C,
}

// retryRandomAt is where the random is: after the record's and the message's header and the
// version.
const retryRandomAt = recordHeader + 4 + 2

func isRetryRequest(answer []byte) bool {
	return len(answer) >= retryRandomAt && bytes.HasPrefix(answer[retryRandomAt:], retryRandom)
}
