package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/dockerexec/mounts"
)

// Prepared is what a container needs on the host beyond its Spec, as of when the container is made.
type Prepared struct {
	Mounts []Mount
	Masks  []Mask
}

// mountPreparer makes mount points on the host.
type mountPreparer interface {
	// Prepare makes the mount points of a Spec and returns what else must be mounted. Each
	// successful Prepare is followed by one Release or one Forget.
	Prepare(Spec) (Prepared, error)
	// Release removes what no other container needs.
	Release(Spec)
	// Forget is Release for a user whom another host may have by now: it leaves all as it is.
	Forget(Spec)
	// Rebind turns what was prepared for one Spec into what another needs, whose container and
	// directories are the same under other names. Even after an error it is the second Spec that
	// must be released.
	Rebind(from, to Spec) error
	// Follow tells what changes in directories of the host, which it reads as the owner of a Spec's
	// home, until ctx ends. It leaves out what is too much.
	Follow(ctx context.Context, spec Spec, dirs []string, told func(News))
}

// verified returns the mount as one that is verified.
func (m Mount) verified() mounts.Mount {
	return mounts.Mount{Source: m.Source, Target: m.Target,
		File: mounts.File{Dev: m.ID.Dev, Ino: m.ID.Ino}}
}

// toVerify returns those of a container's mounts that are verified.
func (c *Container) toVerify() (list []mounts.Mount) {
	for _, m := range slices.Concat(c.spec.Mounts, c.mounts.Mounts) {
		if m.Verify {
			list = append(list, m.verified())
		}
	}
	return list
}

// neighbours returns all containers but one that may have programs which can write to what holds one
// of the names on the host, or is it.
func (e *Executor) neighbours(of *life.Life, names []string) (list []*life.Life) {
	e.mu.Lock()
	defer e.mu.Unlock()
	seen := map[*Container]bool{}
	for _, name := range names {
		for dir := path.Clean(name); ; dir = path.Dir(dir) {
			for c := range e.writers[dir] {
				if !seen[c] && c.Life != of && !c.is(life.Queued, life.Ended, life.Gone) {
					list = append(list, c.Life)
				}
				seen[c] = true
			}
			if dir == path.Dir(dir) {
				break
			}
		}
	}
	return list
}

// writesTo notes what on the host a container's programs can write to. e.mu is held.
func (e *Executor) writesTo(c *Container, places []string) {
	e.forgetWrites(c)
	c.writes = places
	e.indexWrites(c)
}

// indexWrites makes a container known as a writer. e.mu is held.
func (e *Executor) indexWrites(c *Container) {
	for _, place := range c.writes {
		place = path.Clean(place)
		if e.writers[place] == nil {
			e.writers[place] = map[*Container]bool{}
		}
		e.writers[place][c] = true
	}
}

// forgetWrites takes back what indexWrites has made known. e.mu is held.
func (e *Executor) forgetWrites(c *Container) {
	for _, place := range c.writes {
		place = path.Clean(place)
		if delete(e.writers[place], c); len(e.writers[place]) == 0 {
			delete(e.writers, place)
		}
	}
}

// mend has a container resume that could not after it was held, until it does or is gone.
func (e *Executor) mend(l *life.Life, err error) {
	e.cfg.Log.Error().Err(err).Str("container", l.ID()).
		Msg("cannot resume a container that was paused for another one")
	e.work.Go(func() {
		e.repeat(func() bool {
			return l.Now().State > life.Frozen || l.Mend(e.ctx) == nil
		})
	})
}

// repeat calls do again and again, less often each time, until it is done or the service ends.
func (e *Executor) repeat(do func() (done bool)) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = time.Second, time.Minute
	for {
		select {
		case <-time.After(wait.NextBackOff()):
		case <-e.ctx.Done():
			return
		}
		if do() {
			return
		}
	}
}

// startExclusively starts a container while nothing runs that could change where the names of its
// mounts lead. After an error nothing of it runs.
func (e *Executor) startExclusively(ctx context.Context, c *Container, all []specs.Mount) error {
	if err := e.reconcileOnce(ctx); err != nil { // before, it is not known who may write where
		return err
	}
	return e.guard.Start(ctx, c.Life, all, c.toVerify(), func(ctx context.Context) error {
		e.starting.Add(1) // first, so that whoever waits for starts to end sees this one
		defer e.starting.Add(-1)
		if err := e.may(c.spec.User); err != nil {
			return err
		}
		if err := e.engine.Start(ctx, c.ID()); err != nil {
			// Whatever the runtime was doing must have ended before the others resume.
			return errors.Join(fmt.Errorf("cannot start: %w", err), e.removeContainer(c.ID()))
		}
		if err := e.may(c.spec.User); err != nil { // Docker may have taken long
			return errors.Join(err, e.removeContainer(c.ID()))
		}
		return nil
	})
}

// Starting returns how many containers Docker is starting now.
func (e *Executor) Starting() int { return int(e.starting.Load()) }
