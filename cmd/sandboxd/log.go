package main

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/config"
)

// logs is where the service's log goes. Its format and its level may change while the service runs.
// The level is zerolog's global one, because a logger's own level is copied with the logger.
type logs struct {
	to  io.Writer
	out atomic.Pointer[io.Writer]
}

func newLogs(cfg config.Log, to io.Writer) (*logs, zerolog.Logger) {
	l := &logs{to: to}
	l.use(cfg)
	return l, zerolog.New(l).Level(zerolog.TraceLevel).With().Timestamp().Logger()
}

// Write implements io.Writer for zerolog. It is called once for each event.
func (l *logs) Write(event []byte) (int, error) { return (*l.out.Load()).Write(event) }

// use changes level and format to those of the settings.
func (l *logs) use(cfg config.Log) {
	out := l.to
	if cfg.Format == "text" {
		out = zerolog.ConsoleWriter{Out: out, TimeFormat: time.TimeOnly}
	}
	l.out.Store(&out)
	level, err := zerolog.ParseLevel(cfg.Level)
	if err != nil {
		level = zerolog.InfoLevel
	}
	zerolog.SetGlobalLevel(level)
}
