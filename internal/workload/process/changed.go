package process

import (
	"cmp"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/events"
)

// Changed is the event that a process has changed. Status is one of the states, or removed.
type Changed struct {
	ID, Sandbox, Name, Status string
	// Reason says why it does not run, if its exit does not say, or what its start had to do.
	Reason string

	// For operators.
	what      change
	exitCode  *int
	signal    string
	oom       bool
	restarts  int
	restartIn time.Duration
}

// change is what happened to a process, in the words of the log; empty for what is not logged.
type change string

const (
	started      change = "process started"
	startedAgain change = "process started again"
	notStarted   change = "process not started again"
	ended        change = "process ended"
	removed      change = "process removed"
)

// publish publishes the current state of a process. The turn is held, but no lock, because the log
// is written meanwhile.
func (p *process) publish(status string, what change) {
	r := p.record
	p.of.cfg.Events.Publish(events.Process, r.UserID, Changed{
		ID: p.id, Sandbox: r.SandboxID, Name: r.Name, Status: status,
		Reason: cmp.Or(r.Reason, r.Notice), what: what, exitCode: r.ExitCode, signal: r.Signal,
		oom: r.OOMKilled, restarts: r.RestartCount, restartIn: max(r.restartDelay(p.of.now()), 0),
	})
}

// Line implements events.Line.
func (c Changed) Line(log *zerolog.Logger, user string) {
	if c.what == "" {
		return
	}
	line := log.Info().Str("process", c.ID).Str("user", user)
	switch c.what {
	case ended:
		line = line.Str("status", c.Status).Interface("exitCode", c.exitCode).
			Str("signal", c.signal).
			Bool("oom", c.oom).Str("reason", c.Reason).
			Int64("restartInMs", c.restartIn.Milliseconds())
	case startedAgain:
		line = events.Texts(line.Int("restarts", c.restarts), "notice", c.Reason)
	case notStarted:
		line = line.Str("reason", c.Reason).Int64("restartInMs", c.restartIn.Milliseconds())
	}
	line.Msg(string(c.what))
}
