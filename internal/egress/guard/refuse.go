package guard

import (
	"time"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// TLS alerts give the program's library an ordinary error at once.
const (
	alertAccessDenied     = 49
	alertDecodeError      = 50
	alertUnrecognizedName = 112
)

const (
	// lingerTime is how long a client may take to notice an alert, and lingerBytes what it may send
	// meanwhile.
	lingerTime  = time.Second
	lingerBytes = 64 << 10
)

// refuse sends the program an alert, and reports the verdict. A client that connects and leaves
// without having sent anything has asked for nothing.
func (s *session) refuse(r *refusal) {
	raw := s.hello.raw
	if r.reason == reasonCutShort && len(raw) == 0 {
		return
	}
	s.decide(s.name, r)
	switch {
	case r.verdict == decisions.Limited || len(raw) == 0 || raw[0] != recordHandshake:
		s.abort()
	case r.verdict == decisions.Malformed:
		s.alert(alertDecodeError)
	case r.reason == reasonNotAllowed:
		s.alert(alertAccessDenied)
	default:
		s.alert(alertUnrecognizedName)
	}
}

// alert sends an alert, ends our side, and waits a little for the program to do the same: if the
// socket were closed while something is unread, the kernel would discard the alert.
func (s *session) alert(alert byte) {
	const fatal = 2
	_ = s.client.SetDeadline(time.Now().Add(lingerTime))
	if _, err := s.client.Write([]byte{recordAlert, 3, 3, 0, 2, fatal, alert}); err != nil {
		s.abort()
		return
	}
	_ = s.client.CloseWrite()
	for left := lingerBytes; left > 0; {
		if s.client.receive(min(left, turnShare), func(p []byte) { left -= len(p) }) != nil {
			return
		}
	}
}
