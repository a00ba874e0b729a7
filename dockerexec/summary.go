package dockerexec

import (
	"time"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/events"
)

// Summary describes a container for calls, or one that waits in the pool.
type Summary struct {
	Name        string
	ID          string // empty while it is being made
	User        string // empty in the pool
	Fingerprint Fingerprint
	Runtime     string
	// starting, idle, frozen or busy; in the pool starting or pooled; in events also removed
	State    string
	Commands int // that are running in it
	Since    time.Time
	LastUsed time.Time
}

// Summary describes the container as it is now.
func (c *Container) Summary() Summary {
	now := c.Now()
	s := c.describe(shownAs(now))
	if s.State != "starting" {
		s.ID = now.ID
	}
	return s
}

// shownAs returns the name under which users see a state.
func shownAs(now life.Now) string {
	switch {
	case now.State < life.Ready:
		return "starting"
	case now.Calls > 0:
		return "busy"
	case now.State == life.Frozen:
		return "frozen"
	default:
		return "idle"
	}
}

// describe describes a container in a state. One that is idle in the pool is pooled.
func (c *Container) describe(state string) Summary {
	user := c.spec.User
	if c.spec.IsPooled() {
		user = ""
		if state == "idle" {
			state = "pooled"
		}
	}
	now := c.Now()
	return Summary{
		Name: c.spec.ContainerName(), User: user, Fingerprint: c.fingerprint,
		Runtime: c.spec.Runtime(), State: state, Commands: now.Calls, Since: c.since,
		LastUsed: now.LastUsed,
	}
}

// publish publishes the state of a container to callers that may know of its user, and of a pooled
// one to callers that act for everyone.
func (e *Executor) publish(c *Container, state string) {
	told := c.describe(state)
	e.cfg.Events.Publish(events.Container, told.User, told)
}
