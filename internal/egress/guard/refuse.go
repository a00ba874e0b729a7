package guard

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
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

// refuse tells the program that it may not, and the observer. Someone who connects and leaves without a
// word has asked for nothing.
func (l *link) refuse(r *refusal) {
	raw := l.hello.raw
	if r.reason == reasonCutShort && len(raw) == 0 {
		l.finish()
		return
	}
	l.flow.decide(l.name, r)
	switch {
	case r.verdict == Limited || len(raw) == 0 || raw[0] != recordHandshake:
		l.reset()
	case r.verdict == Malformed:
		l.alert(alertDecodeError)
	case r.reason == reasonNotAllowed:
		l.alert(alertAccessDenied)
	default:
		l.alert(alertUnrecognizedName)
	}
}

// alert ends the connection from our side and waits a little for the program to do the same: if it were
// closed while something is unread, the kernel would take the alert back.
func (l *link) alert(alert byte) {
	const fatal = 2
	l.client.unsent = []byte{recordAlert, 3, 3, 0, 2, fatal, alert}
	if sent, _ := l.client.send(); !sent {
		l.reset()
		return
	}
	rawShutdown(l.client.fd, unix.SHUT_WR)
	l.unheard = lingerBytes
	l.next = (*link).awaitEnd
	l.poller.within(l, lingerTime, (*link).finish)
	l.awaitEnd()
}

func (l *link) awaitEnd() {
	var p [4 << 10]byte
	for l.unheard > 0 {
		n, err := l.client.Read(p[:])
		if errors.Is(err, errAgain) {
			return
		}
		if err != nil {
			break
		}
		l.unheard -= n
	}
	l.finish()
}
