package sandbox

import (
	"context"
	"fmt"
	"sync"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/ids"
)

// A sandbox may be paused: its record says so, its durable processes are paused, and its user's idle containers are
// frozen. Whatever runs something in it resumes it first. Its files are on the host, and stay within reach.

// activity is what pausing needs to know of one sandbox until it is deleted: a later sandbox of that id has its own.
type activity struct {
	commands int        // in progress; under records.mu
	change   sync.Mutex // held while its processes are made to follow the record
}

// of finds the activity of a sandbox; records.mu is held.
func (r *records) of(id ids.Sandbox) *activity {
	if r.active[id] == nil {
		r.active[id] = &activity{}
	}
	return r.active[id]
}

// begin counts a command as in progress until end is called, unless the sandbox is paused.
func (r *records) begin(box Sandbox) (end func(), paused bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, is := r.sandboxes[box.ID]
	switch {
	case !is || now.User != box.User:
		return nil, false, errs.NotFound("sandbox %q was deleted meanwhile", box.ID)
	case now.Paused:
		return nil, true, nil
	}
	if err := r.isOpen(box.User); err != nil {
		return nil, false, err
	}
	a := r.of(box.ID)
	a.commands++
	r.commands[box.User]++
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		a.commands--
		if r.commands[box.User]--; r.commands[box.User] == 0 {
			delete(r.commands, box.User)
		}
	}), false, nil
}

// setPaused durably records whether a sandbox is paused. A sandbox with commands in progress is not paused.
func (r *registry) setPaused(id ids.Sandbox, paused bool) (Sandbox, error) {
	defer r.change(id)()
	s, is := r.sandboxes[id]
	switch n := r.of(id).commands; {
	case !is || !r.scope.Has(s.User):
		return s, errs.NotFound("sandbox %q is not registered", id)
	case s.Paused == paused:
		return s, nil
	case paused && n > 0:
		return s, errs.Conflict("cannot pause sandbox %q: %d commands run in it or are about to; wait until they have ended, or end them", id, n)
	}
	before, revision := s, r.revisions[id]
	s.Paused = paused
	r.keep(s) // before it is written: no command begins meanwhile in a sandbox that is to be paused
	err := r.write(s)
	_, still := r.sandboxes[id]
	if err != nil && still && r.revisions[id] == revision { // another host may have changed or deleted it meanwhile
		r.keep(before)
	}
	return s, err
}

// Paused reports whether a user has a paused sandbox of that id. A process may be older than the sandbox, and
// belong to another user.
func (r *Resolver) Paused(user, id string) bool {
	parsed, err := ids.ParseSandbox(id)
	if err != nil {
		return false
	}
	box, err := r.registry.Get(parsed)
	return err == nil && box.Paused && box.User.String() == user
}

// Pause pauses a sandbox until it is resumed, across restarts of the service. It freezes the sandbox's processes, and
// its user's other containers in which nothing runs. The error is of class Conflict while commands run in it.
func (s *Service) Pause(ctx context.Context, id string) (Sandbox, error) {
	box, err := s.setPaused(ctx, id, true)
	if err != nil {
		return box, err
	}
	s.executor.FreezeIdle(box.User.String()) // including those that it shares with the user's other sandboxes
	return box, nil
}

// Resume resumes a sandbox. One that is not paused stays as it is.
func (s *Service) Resume(ctx context.Context, id string) (Sandbox, error) {
	return s.setPaused(ctx, id, false)
}

func (s *Service) setPaused(ctx context.Context, id string, paused bool) (Sandbox, error) {
	box, err := s.Get(id)
	if err != nil {
		return Sandbox{}, err
	}
	s.registry.mu.Lock()
	a := s.registry.of(box.ID)
	s.registry.mu.Unlock()
	a.change.Lock()
	defer a.change.Unlock()
	if box, err = s.registry.setPaused(box.ID, paused); err != nil {
		return box, err
	}
	if err := s.processes.FollowPause(ctx, box.ID.String()); err != nil {
		what := "paused, but not all of its processes are: pause it again"
		if !paused {
			what = "resumed, but not all of its processes are: resume it again"
		}
		return box, fmt.Errorf("sandbox %q is %s: %w", box.ID, what, err)
	}
	return box, nil
}

// enter counts a command of a sandbox as in progress until leave is called. It resumes a paused sandbox, or
// refuses the command if onlyIfRunning is set.
func (s *Service) enter(ctx context.Context, box Sandbox, onlyIfRunning bool) (leave func(), err error) {
	for {
		leave, paused, err := s.registry.begin(box)
		switch {
		case err != nil || !paused:
			return leave, err
		case onlyIfRunning:
			return nil, errs.Conflict("sandbox %q is paused, and the call needs a running one (onlyIfRunning): POST /v1/sandboxes/%s/resume first, or leave onlyIfRunning out", box.ID, box.ID)
		}
		if _, err := s.Resume(ctx, box.ID.String()); err != nil {
			return nil, err
		}
	}
}
