package guard

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/egress/nonblock"
)

// TLS alerts give the program's library an ordinary error at once.
const (
	alertAccessDenied     = 49
	alertDecodeError      = 50
	alertUnrecognizedName = 112
)

const (
	// lingerTime is how long a client may take to notice an alert, and lingerBytes what it may send meanwhile.
	lingerTime  = time.Second
	lingerBytes = 64 << 10
)

// refuse sends the program an alert, and reports the verdict. A client that connects and leaves without having sent
// anything has asked for nothing.
func (s *session) refuse(r *refusal) {
	raw := s.hello.raw
	if r.reason == reasonCutShort && len(raw) == 0 {
		s.finish()
		return
	}
	s.flow.decide(s.name, r)
	switch {
	case r.verdict == decisions.Limited || len(raw) == 0 || raw[0] != recordHandshake:
		s.Reset()
	case r.verdict == decisions.Malformed:
		s.alert(alertDecodeError)
	case r.reason == reasonNotAllowed:
		s.alert(alertAccessDenied)
	default:
		s.alert(alertUnrecognizedName)
	}
}

// alert sends an alert, ends our side, and waits a little for the program to do the same: if the socket
// were closed while something is unread, the kernel would discard the alert.
func (s *session) alert(alert byte) {
	const fatal = 2
	s.Client.Unsent = []byte{recordAlert, 3, 3, 0, 2, fatal, alert}
	if sent, _ := s.Client.Send(); !sent {
		s.Reset()
		return
	}
	nonblock.Shutdown(s.Client.FD(), unix.SHUT_WR)
	s.lingering = lingerBytes
	s.next = (*session).awaitEnd
	s.Within(lingerTime, s.finish)
	s.awaitEnd()
}

func (s *session) awaitEnd() {
	var p [4 << 10]byte
	for s.lingering > 0 {
		n, err := s.Client.Read(p[:])
		if errors.Is(err, nonblock.Again) {
			return
		}
		if err != nil {
			break
		}
		s.lingering -= n
	}
	s.finish()
}
