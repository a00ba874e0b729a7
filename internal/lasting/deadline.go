package lasting

import (
	"context"
	"maps"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
)

// retryAfter is how long until a sandbox that could not be ended or removed is tried again.
const retryAfter = 10 * time.Second

// busyFor is how long until a sandbox that is being changed is looked at again.
const busyFor = 100 * time.Millisecond

// rouse makes keepDeadlines look at the deadlines again.
func (s *Sandboxes) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// keepDeadlines ends or pauses sandboxes at their deadlines, and removes what is left of those that are gone, until Shutdown.
func (s *Sandboxes) keepDeadlines() {
	tried, looked := map[*entry]time.Time{}, time.Time{}
	for s.life.Err() == nil {
		next := s.endDue(tried)
		if !s.allFound() || s.again.Load() {
			if time.Since(looked) >= retryAfter {
				looked = time.Now()
				if err := s.find(s.life); err != nil && s.life.Err() == nil {
					s.cfg.Log.Warn().Err(err).Msg("cannot look for the containers of lasting sandboxes yet; trying again")
				}
			}
			next = min(next, max(time.Millisecond, time.Until(looked.Add(retryAfter))))
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

// endDue ends what is due, and returns the time until there is more to do.
func (s *Sandboxes) endDue(tried map[*entry]time.Time) time.Duration {
	const never = time.Hour
	all := s.entries()
	maps.DeleteFunc(tried, func(e *entry, _ time.Time) bool { return !slices.Contains(all, e) })
	next := never
	for _, e := range all {
		if !e.isHeld() {
			continue
		}
		wait, due := s.untilDue(e, time.Now())
		if again := time.Until(tried[e].Add(retryAfter)); due && again > 0 {
			wait, due = again, false
		}
		switch {
		case !due:
		case !e.changing.TryLock(): // it is being ended, changed or created
			wait = busyFor
		default:
			tried[e], wait = time.Now(), retryAfter
			if s.end(e) {
				delete(tried, e)
				wait = never
			}
			e.changing.Unlock()
		}
		next = min(next, wait)
	}
	return max(next, time.Millisecond)
}

// untilDue returns how long a sandbox has left. It does not wait for a change that is under way.
func (s *Sandboxes) untilDue(e *entry, now time.Time) (wait time.Duration, due bool) {
	const never = time.Hour
	e.mu.Lock()
	defer e.mu.Unlock()
	switch r := e.record; {
	case e.gone:
		return 0, true
	case r.Deadline.IsZero() || r.Paused:
		return never, false
	case r.Deadline.After(now):
		return r.Deadline.Sub(now), false
	}
	return 0, true
}

// runs asks Docker whether a container runs.
func (s *Sandboxes) runs(container string) (bool, error) {
	ctx, cancel := context.WithTimeout(s.life, removalLimit)
	defer cancel()
	all, err := s.cfg.Executor.Lasting(ctx)
	return slices.ContainsFunc(all, func(c dockerexec.ProcessContainer) bool { return c.ID == container && c.Running }), err
}

// timeCome is the event that a sandbox was ended or paused at its deadline.
type timeCome struct {
	sandbox string
	paused  bool
}

// Line implements events.Line.
func (c timeCome) Line(log *zerolog.Logger, _ string) {
	log.Info().Str("sandbox", c.sandbox).Bool("paused", c.paused).Msg("a sandbox's time has come")
}

// end ends or pauses a sandbox that is due, or removes the rest of one, and reports whether that is done. entry.changing is held.
func (s *Sandboxes) end(e *entry) bool {
	if _, due := s.untilDue(e, time.Now()); !due {
		return true
	}
	e.mu.Lock()
	container, pauses, ended := e.container, !e.gone && e.record.OnDeadline == Pause, s.state(e) == StateEnded
	e.mu.Unlock()
	id := e.id
	if pauses && ended {
		// The sandbox goes for good, so Docker has to confirm that its container does not run.
		if runs, err := s.runs(container); runs || err != nil {
			return false
		}
		pauses = false
	}
	if s.entry(id) != e {
		return true
	}
	var err error
	if pauses {
		ctx, cancel := context.WithTimeout(s.life, removalLimit)
		defer cancel()
		err = (&Sandbox{of: s, entry: e}).pause(ctx, func(e *entry, how func(*record)) error {
			s.must(e, how)
			return nil
		})
		if cerrdefs.IsUnavailable(err) { // it has ended meanwhile
			err = nil
		}
	} else {
		err = s.remove(e)
	}
	if err != nil && s.life.Err() == nil {
		s.cfg.Log.Error().Err(err).Str("sandbox", id).Msg("cannot end a sandbox whose time has come; trying again")
	} else if err == nil {
		stream, _ := s.cfg.Service.Events()
		stream.Tell(s.life, "", timeCome{id, pauses})
	}
	return err == nil
}
