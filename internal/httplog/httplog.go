// Package httplog turns what net/http logs about its own work into events of the service's log.
// net/http prints lines, some of them chosen by peers (a server's "unsolicited response"), without
// a limit. Here each line is one field of one event, so it cannot pass for another event; it is cut
// to a bounded length, and their rate is limited.
package httplog

import (
	"bytes"
	"log"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

const (
	// maxLine and maxPanic bound the length of a line. A panic's line includes the stack, and does
	// not come from a peer.
	maxLine, maxPanic = 256, 16 << 10
	// perPeriod is how many lines are logged in each period.
	perPeriod = 10
	period    = 10 * time.Second
)

// New returns a logger for http.Server.ErrorLog and the like. from says where the lines come from.
func New(to zerolog.Logger, from string) *log.Logger {
	return log.New(&writer{log: to, from: from}, "", 0)
}

// UseForStandard makes the standard logger write to the log, because http.Transport has no logger
// of its own.
func UseForStandard(to zerolog.Logger) {
	log.SetFlags(0)
	log.SetPrefix("")
	log.SetOutput(&writer{log: to, from: "standard logger"})
}

type writer struct {
	log  zerolog.Logger
	from string

	mu            sync.Mutex
	lines, alarms throttle
}

// throttle limits the lines of one kind. The writer's mutex guards it.
type throttle struct {
	until   time.Time // the end of the current period
	told    int       // in the current period
	omitted int
}

// Write is called by log.Logger with one line.
func (w *writer) Write(line []byte) (int, error) {
	text, limit, level, kind := bytes.TrimSpace(line), maxLine, zerolog.DebugLevel, &w.lines
	// A peer's text always comes after other words.
	switch {
	case bytes.HasPrefix(text, []byte("http: panic serving ")):
		limit, level, kind = maxPanic, zerolog.ErrorLevel, &w.alarms
	case bytes.HasPrefix(text, []byte("http: Accept error: ")):
		level, kind = zerolog.WarnLevel, &w.alarms
	}
	omitted, ok := w.turn(kind)
	if !ok {
		return len(line), nil
	}
	event := w.log.WithLevel(level).Str("from", w.from)
	if omitted > 0 {
		event = event.Int("omitted", omitted)
	}
	if len(text) > limit {
		text = text[:limit]
	}
	event.Str("line", strings.ToValidUTF8(string(text), "\uFFFD")).Msg("net/http says")
	return len(line), nil
}

// turn reports whether a line may be logged now, and how many were omitted since the last one.
func (w *writer) turn(of *throttle) (omitted int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now(); !now.Before(of.until) {
		of.until, of.told = now.Add(period), 0
	}
	if of.told == perPeriod {
		of.omitted++
		return 0, false
	}
	of.told++
	omitted, of.omitted = of.omitted, 0
	return omitted, true
}
