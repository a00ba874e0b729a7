package dockerexec

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/events"
)

// Incident is an event that only operators are told of: how a container came to be, why it is
// removed, or what happened to a call because of that. Only those of its fields that are set are
// logged.
type Incident struct {
	What      string        // in the words of the log
	Level     zerolog.Level // at least Info, and with an error at least Warn
	Container string
	Sandbox   string // of a persistent container
	ID        string
	Why       string
	Quota     string // the setting of the bound for which it is removed
	Commands  int    // that are running in it
	Try       int    // of a call
	Err       error
	// Runtime, Adopted and Took are set for a container that was made, or taken over.
	Runtime string
	Adopted bool
	Took    time.Duration
}

// Line implements events.Line.
func (i Incident) Line(log *zerolog.Logger, user string) {
	level := max(i.Level, zerolog.InfoLevel)
	if i.Err != nil {
		level = max(level, zerolog.WarnLevel)
	}
	line := events.Texts(log.WithLevel(level).Err(i.Err),
		"user", user, "sandbox", i.Sandbox, "container", i.Container, "id", i.ID, "why", i.Why,
		"quota", i.Quota)
	if i.Commands > 0 {
		line = line.Int("commands", i.Commands)
	}
	if i.Try > 0 {
		line = line.Int("try", i.Try)
	}
	if i.Runtime != "" {
		line = line.Str("runtime", i.Runtime).Bool("adopted", i.Adopted).Dur("took", i.Took)
	}
	line.Msg(i.What)
}

// Tell tells operators what has happened to a container. Executor.mu must not be held: the log is
// written meanwhile.
func (e *Executor) Tell(ctx context.Context, c *Container, i Incident) {
	user := c.spec.User
	i.Container, i.Sandbox = c.spec.ContainerName(), c.spec.Persistent
	if i.Sandbox != "" && c.spec.Process.Dir == "" { // a client's, which is a user
		user = ""
	}
	e.cfg.Events.Tell(ctx, user, i)
}
