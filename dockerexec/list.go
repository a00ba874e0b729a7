package dockerexec

import (
	"slices"
	"strings"
	"time"
)

// Container is what there is to say about a warm container.
type Container struct {
	Name        string
	ID          string // empty while it is being made
	User        string
	Fingerprint Fingerprint
	Runtime     string
	State       string // starting, idle or busy
	Commands    int    // that run in it now
	Since       time.Time
	LastUsed    time.Time
}

// Containers lists this instance's containers by name.
func (e *Executor) Containers() []Container {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := make([]Container, 0, len(e.containers))
	for _, w := range e.containers {
		c := Container{
			Name: w.spec.ContainerName(), User: w.spec.User, Fingerprint: w.fingerprint,
			Runtime: w.spec.Runtime(), State: "starting",
			Commands: w.users, Since: w.since, LastUsed: w.lastUsed,
		}
		if w.isReady() {
			c.ID, c.State = w.id, "idle"
			if w.users > 0 {
				c.State = "busy"
			}
		}
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b Container) int { return strings.Compare(a.Name, b.Name) })
	return list
}
