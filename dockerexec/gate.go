package dockerexec

import (
	"fmt"

	cerrdefs "github.com/containerd/errdefs"
)

// Gate says what the service wants of containers. It is asked without locks, and may call the
// Executor. Before Start there is none, and nothing may start.
type Gate interface {
	// May returns nil while containers of a user's, or of a PoolUser's, may start, and while some
	// may be bound to the user. The error is of class Unavailable. It is asked just before each
	// start and binding, just after, and when a container has gone.
	May(user string) error
	// Wanted returns what is wanted of a process's or a persistent sandbox's container that an
	// earlier service has left.
	Wanted(Spec) Wanted
}

// Wanted is what is wanted of a container that was found. The zero value opens nothing and resumes
// nothing.
type Wanted struct {
	// Reach is what a persistent container may reach now; nil for nothing. One of a process reaches
	// what its Spec says.
	Reach *Egress
	// Running says that it is to run, and so to be resumed if it was found paused. Otherwise it
	// stays paused then, as somebody may have asked for that.
	Running bool
}

// refusedStart is an error of Gate.May.
type refusedStart struct{ error }

func (e refusedStart) Unwrap() error { return e.error }

// may asks the Gate.
func (e *Executor) may(user string) error {
	gate := e.gate.Load()
	if gate == nil {
		return refusedStart{fmt.Errorf("the service is starting: %w", cerrdefs.ErrUnavailable)}
	}
	if err := (*gate).May(user); err != nil {
		return refusedStart{err}
	}
	return nil
}

// hasLost reports whether another host may have the user by now.
func (e *Executor) hasLost(user string) bool {
	gate := e.gate.Load()
	return gate != nil && (*gate).May(user) != nil
}

// wanted asks the Gate.
func (e *Executor) wanted(spec Spec) Wanted {
	if gate := e.gate.Load(); gate != nil {
		return (*gate).Wanted(spec)
	}
	return Wanted{}
}

// reachOf returns what a persistent container that was found may reach.
func (e *Executor) reachOf(spec Spec) Egress {
	reach := e.wanted(spec).Reach
	if reach == nil || reach.Profile != spec.Egress.Profile {
		return Egress{Profile: spec.Egress.Profile, Domains: []string{}, Denied: []string{}}
	}
	return *reach
}
