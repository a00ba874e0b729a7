// Package httplog has what net/http says about its own work told as events of the service's log. net/http
// prints lines, some of which peers choose (a server's "unsolicited response"), as many as they like. Here a line is
// one field of one event, so it cannot look like another, is cut to a bounded length, and waits its turn.
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
	// maxLine and maxPanic are how much of a line is told. A panic's has the stack, and is no peer's.
	maxLine, maxPanic = 256, 16 << 10
	// perPeriod is how many lines are told in each period.
	perPeriod = 10
	period    = 10 * time.Second
)

// New is for http.Server.ErrorLog and its like. from says whose lines they are.
func New(to zerolog.Logger, from string) *log.Logger {
	return log.New(&writer{log: to, from: from}, "", 0)
}

// UseForStandard has the standard logger print to the log: that is where http.Transport writes, which has no other.
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

// throttle bounds the lines of one kind. The writer's mutex guards it.
type throttle struct {
	until   time.Time // the end of the present period
	told    int       // in it
	omitted int
}

// Write is for log.Logger: one line.
func (w *writer) Write(line []byte) (int, error) {
	text, most, level, kind := bytes.TrimSpace(line), maxLine, zerolog.DebugLevel, &w.lines
	// A peer's text comes behind other words.
	switch {
	case bytes.HasPrefix(text, []byte("http: panic serving ")):
		most, level, kind = maxPanic, zerolog.ErrorLevel, &w.alarms
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
	if len(text) > most {
		text = text[:most]
	}
	event.Str("line", strings.ToValidUTF8(string(text), "\uFFFD")).Msg("net/http says")
	return len(line), nil
}

// turn reports whether a line may be told now, and how many were not since the last one.
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
