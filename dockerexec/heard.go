package dockerexec

import (
	"cmp"
	"context"
	"path"
	"slices"
	"time"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// gVisor's kernel has inotify of its own, which hears nothing of what the service changes in a
// directory that it shares with a container. So the agent of one container in which somebody
// watches files renames a new file into its place, which is an event there like any other, and all
// others are told what has changed, when they are told what was removed (removed.go).

const (
	// insideLimit is how long a container may take to rename a file, and firstLimit the same where
	// an agent has to be started for that. insideTries is how many containers are asked.
	insideLimit = time.Second
	firstLimit  = 5 * time.Second
	insideTries = 4
	// unwatchedFor is how long nobody is taken to watch files in a container where nobody did, and
	// silentFor the same after it did not answer.
	unwatchedFor = time.Second
	silentFor    = time.Minute
	// maxChanged is how many changed paths a container may have waiting. Of more, their directories
	// are told.
	maxChanged = 256
)

// mayWatch reports whether programs run in the container that may hear of changes: one that is
// frozen, or in which no call is, has none.
func (c *Container) mayWatch() bool {
	now := c.Now()
	return c.spec.Platform.GVisor && now.State == life.Ready && (c.spec.isDetached() || now.Calls > 0)
}

// Changed has a user's containers hear that what is at a path has come to be, or has changed. Paths
// are as for Removed. It does not block.
func (e *Executor) Changed(user, host, inside string) {
	var told []*Container
	e.mu.Lock()
	for c := range e.all {
		if c.spec.User != user || !c.mayWatch() || time.Now().Before(c.unwatched) {
			continue
		}
		c.changed = append(c.changed, c.spec.placesOf(host, inside)...)
		if len(c.changed) > maxChanged {
			for i, place := range c.changed {
				c.changed[i] = path.Dir(place)
			}
			slices.Sort(c.changed)
			c.changed = slices.Compact(c.changed)
			c.changed = c.changed[:min(len(c.changed), maxChanged)]
		}
		told = append(told, c)
	}
	e.mu.Unlock()
	for _, c := range told {
		e.lookUpSoon(c)
	}
}

// RenameInside has one of a user's containers rename a file if somebody watches files in it: from
// the name temp in the directory of a path, to the path, which are as for Removed. It blocks until
// that is done, or nobody does it. Whoever calls it looks whether it was.
func (e *Executor) RenameInside(user, host, inside, temp string, replace bool) {
	var asked []*Container
	e.mu.Lock()
	for c := range e.all {
		if c.spec.User == user && c.mayWatch() && !time.Now().Before(c.unwatched) {
			asked = append(asked, c)
		}
	}
	e.mu.Unlock()
	slices.SortFunc(asked, func(a, b *Container) int { // those that have run for longest
		return cmp.Compare(a.since.UnixNano(), b.since.UnixNano())
	})
	for _, c := range asked[:min(len(asked), insideTries)] {
		for _, place := range c.spec.placesOf(host, inside) {
			if e.renameIn(c, wire.Rename{From: path.Join(path.Dir(place), temp), To: place,
				Replace: replace}) {
				return
			}
		}
	}
}

// renameIn has a container rename a file, and reports whether it says that it has.
func (e *Executor) renameIn(c *Container, r wire.Rename) bool {
	limit := insideLimit
	if c.sess == nil && !c.asks.IsOpen() {
		limit = firstLimit
	}
	ctx, cancel := context.WithTimeout(e.ctx, limit)
	defer cancel()
	done, err := e.askRename(ctx, c, r)
	quiet := time.Duration(0)
	switch {
	case err != nil:
		quiet = silentFor
		e.cfg.Log.Debug().Err(err).Str("container", c.spec.ContainerName()).
			Msg("a container does not say whether somebody watches files in it")
	case !done.Watched:
		quiet = unwatchedFor
	}
	e.mu.Lock()
	c.unwatched = time.Now().Add(quiet)
	e.mu.Unlock()
	return done.Done
}

func (e *Executor) askRename(ctx context.Context, c *Container, r wire.Rename) (wire.Renamed, error) {
	if c.sess != nil {
		return c.sess.Rename(ctx, r)
	}
	stream, err := e.AskPersistent(ctx, c.ID())
	if err != nil {
		return wire.Renamed{}, err
	}
	answer, err := session.AskOnce(ctx, stream, control.Request{Do: control.Rename, Rename: &r})
	if err != nil || answer.Renamed == nil {
		return wire.Renamed{}, err
	}
	return *answer.Renamed, nil
}
