package persistent

import (
	"context"

	"github.com/daycare-run/sandbox/dockerexec"
)

// A sandbox whose container ran out of memory has lost what ran there, and its root filesystem. Its
// home stays, and the next call starts it again from that, as after a lost host. A registered
// sandbox goes on like that whatever its container was lost by.

// whyEnded returns the limit that has ended a container of a sandbox; nil for none. Everybody who
// asks hears the same.
func (e *entry) whyEnded(container string) *dockerexec.Exhausted {
	e.learning.Lock()
	defer e.learning.Unlock()
	e.mu.Lock()
	gone, known, in := e.gone, e.exhausted, e.exhaustedIn
	e.mu.Unlock()
	switch {
	case container == "" || gone:
		return nil
	case in == container:
		return known
	}
	ctx, cancel := context.WithTimeout(e.of.life, answerLimit)
	defer cancel()
	found := e.of.cfg.Executor.PersistentEnd(ctx, container)
	if found != nil { // once it is removed, nobody can ask again
		e.mu.Lock()
		e.exhausted, e.exhaustedIn = found, container
		e.mu.Unlock()
	}
	return found
}

// keepHome is keepsHome for callers who do not hold entry.changing.
func (e *entry) keepHome() {
	e.mu.Lock()
	ended := !e.gone && e.state() == StateEnded
	e.mu.Unlock()
	if !ended {
		return
	}
	e.changing.Lock()
	defer e.changing.Unlock()
	e.mu.Lock()
	container, ended := e.container, !e.gone && e.state() == StateEnded
	e.mu.Unlock()
	if ended {
		e.keepsHome(container)
	}
}

// keepsHome reports whether a sandbox that has ended goes on from its home. entry.changing is held.
func (e *entry) keepsHome(container string) bool {
	r, words := e.recorded(), "lost, as when Docker is restarted"
	if r.From == nil {
		return false // an earlier service made it, and has not recorded of what
	}
	switch found := e.whyEnded(container); {
	case found != nil:
		words = found.Error()
	case r.Of == nil:
		return false
	default: // Docker has to say so: what still runs is not given up
		if lost, err := e.isLost(container); err != nil || !lost {
			return false
		}
	}
	if err := e.loses(container, words); err != nil {
		e.of.cfg.Log.Error().Err(err).Str("sandbox", e.id).
			Msg("cannot give up the container of a sandbox that goes on from its home; trying again")
	}
	return true
}

// loses gives up a sandbox's container; the next call starts the sandbox again from its home. After
// an error the sandbox has not moved yet. entry.changing is held.
func (e *entry) loses(container, words string) error {
	ctx, cancel := context.WithTimeout(e.of.life, removalLimit)
	defer cancel()
	mark := func(r *record) { r.Lost = &words }
	err := e.change(mark)
	if err != nil && e.of.cfg.Shared == nil { // as on a full disk
		e.must(mark)
		if err = nil; e.recorded().Of == nil {
			// The container stays until this can be recorded, or the next service would find none,
			// and take the sandbox for lost. A registered one has not lost it by that.
			e.goesOnFromHome(container, words)
			return nil
		}
	}
	if err == nil && container != "" {
		err = e.of.cfg.Executor.RemoveProcess(ctx, container)
	}
	if err == nil {
		e.goesOnFromHome("", words)
	}
	return err
}

// goesOnFromHome makes the next call start the sandbox again. left is the container that is still
// to be removed, if there is one.
func (e *entry) goesOnFromHome(left, why string) {
	e.mu.Lock()
	e.container, e.place = left, homeOnly
	e.uncount()
	registered := e.record.Of != nil
	e.mu.Unlock()
	if registered {
		e.giveBack()
	}
	e.followLater()
	e.of.cfg.Log.Warn().Str("sandbox", e.id).Str("why", why).
		Msg("a sandbox has lost its container; the next call starts it again from its home")
}
