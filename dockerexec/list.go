package dockerexec

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/system"

	"github.com/daycare-run/sandbox/engine"
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
			Name: w.spec.containerName(), User: w.spec.User, Fingerprint: w.fingerprint,
			Runtime: w.spec.Platform.Runtime, State: "starting",
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

// Engine is what the service needs to know of its engine.
type Engine struct {
	Version  string
	CPUs     int
	Runtimes []string
}

// Engine asks the engine. Its error tells a person what to do.
func (e *Executor) Engine(ctx context.Context) (Engine, error) {
	info, err := e.docker.Info(ctx)
	if err != nil {
		return Engine{}, fmt.Errorf("cannot ask the engine: %w", engine.Explain(e.docker, err))
	}
	return Engine{Version: info.ServerVersion, CPUs: info.NCPU, Runtimes: runtimes(info)}, nil
}

func runtimes(info system.Info) []string {
	names := make([]string, 0, len(info.Runtimes))
	for name := range info.Runtimes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
