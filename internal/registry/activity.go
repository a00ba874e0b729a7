package registry

import (
	"sync"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/ids"
)

// A sandbox may be paused: its record says so. Commands count themselves here, so that none runs in
// a sandbox that is paused, and none begins for a user who is being removed.

// activity is what pausing needs to know of one sandbox until it is deleted: a later sandbox of
// that id has its own.
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

// Begin counts a command as in progress until end is called, unless the sandbox is paused.
func (r *records) Begin(box Sandbox) (end func(), paused bool, err error) {
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
		r.done(box.User)
	}), false, nil
}

// done ends what r.commands counts; records.mu is held.
func (r *records) done(user ids.User) {
	if r.commands[user]--; r.commands[user] == 0 {
		delete(r.commands, user)
	}
}

// Keep has whoever removes a sandbox's user wait until done is called, as for a command. It does
// not keep the sandbox from being paused.
func (r *records) Keep(box Sandbox) (done func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now, is := r.sandboxes[box.ID]; !is || now.User != box.User {
		return nil, errs.NotFound("sandbox %q was deleted meanwhile", box.ID)
	}
	if err := r.isOpen(box.User); err != nil {
		return nil, err
	}
	r.commands[box.User]++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.done(box.User)
	}, nil
}

// LockPause keeps others from pausing or resuming a sandbox until unlock is called.
func (r *records) LockPause(id ids.Sandbox) (unlock func()) {
	r.mu.Lock()
	a := r.of(id)
	r.mu.Unlock()
	a.change.Lock()
	return a.change.Unlock
}

// SetPaused durably records whether a sandbox is paused. A sandbox with commands in progress is not
// paused.
func (r *Registry) SetPaused(id ids.Sandbox, paused bool) (Sandbox, error) {
	defer r.change(id)()
	s, is := r.sandboxes[id]
	switch {
	case !is || !r.scope.Has(s.User):
		return s, errs.NotFound("sandbox %q is not registered", id)
	case s.Paused == paused:
		return s, nil
	}
	if n := r.of(id).commands; paused && n > 0 {
		return s, errs.Conflict(
			"cannot pause sandbox %q: %d commands run in it or are about to; wait until they have ended, or end them",
			id, n)
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

// IsPaused reports whether a user has a paused sandbox of that id, also while the user is being
// removed. A process may be older than the sandbox, and belong to another user.
func (r *records) IsPaused(user, id string) bool {
	parsed, err := ids.ParseSandbox(id)
	if err != nil {
		return false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	box := r.sandboxes[parsed]
	return box.Paused && box.User.String() == user
}

// CloseUser refuses what is asked for a user until open is called.
func (r *records) CloseUser(user ids.User) (open func(), _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.isOpen(user); err != nil {
		return nil, err
	}
	r.closed[user] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.closed, user)
	}, nil
}

// isOpen returns an error while a user is being removed; mu is held.
func (r *records) isOpen(user ids.User) error {
	if r.closed[user] {
		return errs.Conflict("user %q is being removed: try again when that is done", user)
	}
	return nil
}

// IsBusy reports whether whoever removes a user has to wait: for commands in progress, for a
// registration, or for Keep.
func (r *records) IsBusy(user ids.User) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.commands[user] > 0
}
