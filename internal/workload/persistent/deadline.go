package persistent

import (
	"context"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
)

// retryAfter is how long until a sandbox that could not be ended or removed is tried again.
const retryAfter = 10 * time.Second

// busyFor is how long until a sandbox that is being changed is looked at again.
const busyFor = 100 * time.Millisecond

// endsAtOnce is how many sandboxes are ended at a time. Those of one owner are a quarter of it at
// most, as package budget says: however slow they are, another owner's are ended in time.
const endsAtOnce = 32

// never is the time until something that no time brings about.
const never = time.Hour

// rouse makes keepDeadlines look at the deadlines again.
func (s *Sandboxes) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// keepDeadlines ends or pauses sandboxes at their deadlines, and removes those that have ended by
// themselves, and what is left of those that are gone, until Shutdown.
func (s *Sandboxes) keepDeadlines() {
	var looked time.Time
	for s.life.Err() == nil {
		next := s.endDue()
		if (!s.allFound() || s.again.Load()) && !s.looking.Load() { // look rouses at its end
			if time.Since(looked) >= retryAfter {
				looked = time.Now()
				s.looking.Store(true)
				s.work.Go(s.look)
			} else {
				next = min(next, time.Until(looked.Add(retryAfter)))
			}
		}
		timer := time.NewTimer(next)
		select {
		case <-timer.C:
		case <-s.wake:
		case <-s.life.Done():
		}
		timer.Stop()
	}
}

// look looks for the containers beside the deadlines: one that is slow to be removed or paused
// holds up no other sandbox.
func (s *Sandboxes) look() {
	defer s.rouse()
	defer s.looking.Store(false)
	if err := s.find(s.life); err != nil && s.life.Err() == nil {
		s.cfg.Log.Warn().Err(err).Msg(
			"cannot look for the containers of persistent sandboxes yet; trying again")
	}
}

// endDue begins to end what is due, and returns the time until there is more to do.
func (s *Sandboxes) endDue() time.Duration {
	next := never
	for _, e := range s.entries() {
		if !e.isHeld() {
			continue
		}
		wait, due := e.untilDue(time.Now())
		if due {
			wait = e.beginEnd()
		}
		next = min(next, wait)
	}
	return max(next, time.Millisecond)
}

// beginEnd has a sandbox that is due ended in the background, and returns how long until it is to
// be looked at again.
func (e *entry) beginEnd() time.Duration {
	e.mu.Lock()
	ending, again, owner := e.ending, time.Until(e.retry), e.record.Owner
	e.mu.Unlock()
	switch {
	case ending:
		return never
	case again > 0:
		return again
	case !e.of.ends.Take(owner, 1):
		return never // whoever gives a place back rouses
	case !e.changing.TryLock(): // it is being changed or created
		e.of.ends.Give(owner, 1)
		return busyFor
	}
	e.setEnding(true, time.Time{})
	e.of.work.Go(func() {
		defer e.of.rouse()
		defer e.of.ends.Give(owner, 1)
		defer e.changing.Unlock()
		var retry time.Time
		if !e.end() {
			retry = time.Now().Add(retryAfter)
		}
		e.setEnding(false, retry)
	})
	return never
}

// setEnding records whether a sandbox is being ended, and when that may be tried again.
func (e *entry) setEnding(ending bool, retry time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ending, e.retry = ending, retry
}

// untilDue returns how long a sandbox has left. One that has ended by itself has nothing left,
// paused or not. untilDue does not wait for a change that is under way.
func (e *entry) untilDue(now time.Time) (wait time.Duration, due bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	orphan, differs := e.strays()
	switch r := e.record; {
	case e.gone, e.state() == StateEnded, r.timeHasCome(now), orphan, differs:
		return 0, true
	case r.Deadline.IsZero() || r.Paused:
		return never, false
	default:
		return r.Deadline.Sub(now), false
	}
}

// timeHasCome reports whether a deadline has passed. A paused sandbox has none.
func (r record) timeHasCome(now time.Time) bool {
	return !r.Paused && !r.Deadline.IsZero() && !r.Deadline.After(now)
}

// isLost asks Docker whether a sandbox that seems to have ended has no container that runs. What
// another host's seat, or an earlier lease, has ended is not lost: it goes on from its home.
func (e *entry) isLost(container string) (bool, error) {
	ctx, cancel := context.WithTimeout(e.of.life, removalLimit)
	defer cancel()
	all, err := e.of.cfg.Executor.Persistent(ctx)
	if err != nil || slices.ContainsFunc(all, func(c dockerexec.ProcessContainer) bool {
		return c.Running && (c.ID == container || c.Spec.Persistent == e.id)
	}) {
		return false, err
	}
	r := e.recorded()
	return e.of.cfg.Shared == nil || e.of.cfg.Shared.Leased(r.user(), r.Epoch), nil
}

// hasEnded is the event that a sandbox was ended or paused at its deadline, or was removed because
// its container is lost.
type hasEnded struct {
	sandbox      string
	paused, lost bool
}

// Line implements events.Line.
func (h hasEnded) Line(log *zerolog.Logger, _ string) {
	if h.lost {
		log.Warn().Str("sandbox", h.sandbox).
			Msg("a sandbox has ended by itself, as its container is lost; what it had is removed")
		return
	}
	log.Info().Str("sandbox", h.sandbox).Bool("paused", h.paused).Msg("a sandbox's time has come")
}

// end ends or pauses a sandbox that is due, or removes the rest of one, and reports whether that is
// done. entry.changing is held.
func (e *entry) end() bool {
	if !e.isHeld() || e.of.entry(e.id) != e {
		return true
	}
	e.mu.Lock()
	r, gone, container, ended, isTime := e.record, e.gone, e.container, e.state() == StateEnded,
		e.record.timeHasCome(time.Now())
	orphan, differs := e.strays()
	e.mu.Unlock()
	told := hasEnded{sandbox: e.id}
	var err error
	switch {
	case gone || orphan || isTime && r.OnDeadline == Kill:
		err = e.remove()
	case ended:
		if told.lost, err = e.isLost(container); err == nil && !told.lost {
			return false
		}
		if err == nil && e.keepsHome(container) {
			return e.hasMoved()
		}
		if err == nil {
			err = e.remove()
		}
	case isTime:
		told.paused = true
		err = e.pauseNow()
	case differs:
		err = (&Sandbox{entry: e}).conform(e.of.life)
	default:
		return true // it has been changed meanwhile
	}
	if err != nil && e.of.life.Err() == nil {
		e.of.cfg.Log.Error().Err(err).Str("sandbox", e.id).
			Msg("cannot end a sandbox whose time has come, or whose container is lost; trying again")
	} else if err == nil && r.Of == nil {
		e.of.cfg.Events.Tell(e.of.life, "", told)
	}
	return err == nil
}

// pauseNow pauses a sandbox even if that cannot be recorded. entry.changing is held.
func (e *entry) pauseNow() error {
	ctx, cancel := context.WithTimeout(e.of.life, removalLimit)
	defer cancel()
	return (&Sandbox{entry: e}).pause(ctx, func(how func(*record)) error {
		e.must(how)
		return nil
	})
}
