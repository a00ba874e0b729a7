package dockerexec

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/events"
)

// Incident is an event of which operators alone are told: how a container came to be, why it goes, or what became of a call
// because of that. Of its fields, those are in the log that are set.
type Incident struct {
	What      string        // in the words of the log
	Level     zerolog.Level // at least that of Info, and with an error that of Warn
	Container string
	Sandbox   string // of a container that lasts
	ID        string
	Why       string
	Quota     string // the setting of the bound for which it goes
	Commands  int    // that run in it
	Try       int    // of a call
	Err       error
	// Runtime, Adopted and Took are of a container that was made, or taken over.
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
		"user", user, "sandbox", i.Sandbox, "container", i.Container, "id", i.ID, "why", i.Why, "quota", i.Quota)
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

// tell tells operators what has happened to a container. Executor.mu is best not held, as the log is written meanwhile.
func (e *Executor) tell(ctx context.Context, c *container, i Incident) {
	user := c.spec.User
	if i.Container, i.Sandbox = c.spec.ContainerName(), c.spec.Lasting; i.Sandbox != "" {
		user = ""
	}
	e.cfg.Events.Tell(ctx, user, i)
}
