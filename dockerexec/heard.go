package dockerexec

import (
	"context"
	"errors"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/pathmap"
)

// gVisor's kernel has inotify of its own, which hears nothing of what the service changes in a
// directory that it shares with a container. So the agent of one container in which somebody
// watches files renames a new file into its place, which is an event there like any other. All others
// have who watches the file before it hear that it was replaced, and are told what has changed, when
// they are told what was removed (removed.go).

const (
	// renamesLimit is how long a file may wait to be renamed in a container. An agent may have to
	// be started for that. furtherLimit is how long it waits for further containers.
	renamesLimit = 2 * time.Second
	furtherLimit = time.Second
	// unwatchedFor is how long nobody is taken to watch files in a container where nobody did. One
	// that did not answer is not asked for silentFor or, if it was a further one, whose agent may
	// just be started, for lateFor at first.
	unwatchedFor = time.Second
	silentFor    = 10 * time.Second
	lateFor      = time.Second
	// maxChanged is how many changed paths, and how many directories, News may have.
	maxChanged = 256
	// knownFor is how long a container is taken to know that it has renamed a file.
	knownFor = 10 * time.Second
)

// A Change is what has happened at a path, beside what Removed tells.
type Change string

// The changes. A file that was Replaced is Removed next.
const (
	Made     Change = "made"
	Modified Change = "modified"
	Replaced Change = "replaced"
)

// News are paths that have changed: the first 256 of them, and of more the directories that they are
// in, the first 256 of those.
type News struct {
	changed  places
	modified places // those of changed with other content
	dirs     places // in which more has changed
}

// places are paths in the order in which they came, each once.
type places struct {
	list []string
	has  map[string]bool
}

// add adds a path, and reports whether it is there now.
func (p *places) add(place string) bool {
	if p.has[place] || len(p.list) >= maxChanged {
		return p.has[place]
	}
	if p.has == nil {
		p.has = map[string]bool{}
	}
	p.list, p.has[place] = append(p.list, place), true
	return true
}

// Add adds a path. One that was modified has other content.
func (n *News) Add(place string, modified bool) {
	switch {
	case !n.changed.add(place):
		n.AddDir(path.Dir(place))
	case modified:
		n.modified.add(place)
	}
}

// AddDir adds a directory in which more has changed.
func (n *News) AddDir(place string) { n.dirs.add(place) }

// IsEmpty reports whether nothing has changed.
func (n *News) IsEmpty() bool { return len(n.changed.list)+len(n.dirs.list) == 0 }

// Each calls tell for each path that has changed, and each directory in which more has.
func (n *News) Each(tell func(place string, modified, dir bool)) {
	for _, place := range n.changed.list {
		tell(place, n.modified.has[place], false)
	}
	for _, place := range n.dirs.list {
		tell(place, false, true)
	}
}

func (n *News) put(place string, modified, dir bool) {
	if dir {
		n.AddDir(place)
	} else {
		n.Add(place, modified)
	}
}

// lookUp is what an agent is asked to have heard; others says who may have changed it.
func (n *News) lookUp(others bool) session.LookUp {
	return session.LookUp{Paths: slices.Concat(n.changed.list, n.dirs.list), Modified: n.modified.list,
		Others: others}
}

// hearing is what a container is to be told of changes; Executor.mu guards it.
type hearing struct {
	own    News // what the service has changed
	others News // what programs have changed, those of the container among them
	// watched is when somebody was known to watch files, and quiet until when nobody is taken to.
	watched, quiet time.Time
	silent         time.Time            // until when it is not asked
	late           bool                 // it did not answer in time when it was a further one
	renamed        map[string]time.Time // when it has renamed to paths, which it is not to be told
}

// hasRenamed notes that the container has renamed a file to a path.
func (h *hearing) hasRenamed(place string) {
	maps.DeleteFunc(h.renamed, func(_ string, at time.Time) bool { return time.Since(at) > knownFor })
	if h.renamed == nil {
		h.renamed = map[string]time.Time{}
	}
	if len(h.renamed) < maxChanged {
		h.renamed[place] = time.Now()
	}
}

// knows reports whether the container has renamed a file to a path and was not asked yet.
func (h *hearing) knows(place string) bool {
	at, is := h.renamed[place]
	delete(h.renamed, place)
	return is && time.Since(at) <= knownFor
}

// add adds a change.
func (h *hearing) add(place string, change Change) {
	if change == Replaced && time.Since(h.renamed[place]) <= knownFor ||
		change == Made && h.knows(place) {
		return // of a file that is replaced, Removed asks
	}
	h.own.Add(place, change != Made)
}

func (h *hearing) isEmpty() bool { return h.own.IsEmpty() && h.others.IsEmpty() }

// mayWatch reports whether programs run in the container that may hear of changes: one that is
// frozen, or in which no call is, has none.
func (c *Container) mayWatch() bool {
	return c.spec.Platform.GVisor && c.runsPrograms()
}

// runsPrograms reports whether tenants' programs may run in the container now.
func (c *Container) runsPrograms() bool {
	now := c.Now()
	return now.State == life.Ready && (c.spec.isDetached() || now.Calls > 0)
}

// WritablePlaces returns where a container may write to a path of the host. Paths are as for
// Executor.Removed.
func (s Spec) WritablePlaces(host, inside string) []string {
	return slices.DeleteFunc(s.placesOf(host, inside), func(place string) bool {
		at, readOnly := "", false
		for _, m := range s.Mounts {
			if pathmap.Within(place, m.Target) && len(m.Target) >= len(at) {
				at, readOnly = m.Target, m.ReadOnly
			}
		}
		return readOnly
	})
}

// Changed has a user's containers hear of a change. Paths are as for Removed. It does not block.
func (e *Executor) Changed(user, host, inside string, change Change) {
	e.hear(user, func(c *Container) bool {
		places := c.spec.WritablePlaces(host, inside)
		for _, place := range places {
			c.hears.add(place, change)
		}
		return len(places) > 0
	})
}

// hear has those of a user's containers told of changes that add adds to.
func (e *Executor) hear(user string, add func(*Container) bool) {
	var told []*Container
	e.mu.Lock()
	for c := range e.users[user] {
		if c.mayWatch() && !time.Now().Before(c.hears.quiet) && add(c) {
			told = append(told, c)
		}
	}
	e.mu.Unlock()
	for _, c := range told {
		e.lookUpSoon(c)
	}
}

// RenameInside has one of a user's containers rename a file if somebody watches files in it: from
// the name temp in the directory of a path, to the path, which are as for Removed. All others in
// which somebody watches have who watches the file before hear that it was replaced. It blocks until
// that is done or nobody does it, for 2 s at most, and reports whether anybody was asked. Whoever
// calls it looks what was done.
func (e *Executor) RenameInside(ctx context.Context, user, host, inside, temp string) (asked bool) {
	ctx, cancel := context.WithTimeout(ctx, renamesLimit)
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()
	all := e.watchers(user, host, inside)
	asked = len(all) > 0
	if len(all) > 1 {
		e.announce(ctx, all[1:])
	}
	for ; ctx.Err() == nil && len(all) > 0; all = e.watchers(user, host, inside) {
		w := all[0]
		if e.renameIn(ctx, w.Container, wire.Rename{Dir: path.Dir(w.at), From: temp, To: path.Base(w.at)}) {
			return true
		}
	}
	return asked
}

// announce has who watches a file in further containers hear, once another one has its place, that
// it was replaced.
func (e *Executor) announce(ctx context.Context, further []watcher) {
	ctx, cancel := context.WithTimeout(ctx, furtherLimit)
	defer cancel()
	var all sync.WaitGroup
	for _, w := range further {
		all.Go(func() {
			e.renameIn(ctx, w.Container, wire.Rename{Dir: path.Dir(w.at), To: path.Base(w.at)})
		})
	}
	all.Wait()
}

// A watcher is a container in which somebody may watch a path, and where it has that path.
type watcher struct {
	*Container
	at      string
	watched time.Time
}

// watchers returns the containers that may write to a path and can be asked, first the one in which
// somebody watched last.
func (e *Executor) watchers(user, host, inside string) (all []watcher) {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.users[user] {
		h := &c.hears
		if !c.mayWatch() || now.Before(h.quiet) || now.Before(h.silent) {
			continue
		}
		if places := c.spec.WritablePlaces(host, inside); len(places) > 0 {
			all = append(all, watcher{c, places[0], h.watched})
		}
	}
	slices.SortStableFunc(all, func(a, b watcher) int { return b.watched.Compare(a.watched) })
	return all
}

// renameIn has a container rename a file, or await that (wire.Rename), and reports whether somebody
// watches files in it.
func (e *Executor) renameIn(ctx context.Context, c *Container, r wire.Rename) (watched bool) {
	done, err := e.askRename(ctx, c, r)
	if err != nil {
		e.cfg.Log.Debug().Err(err).Str("container", c.spec.ContainerName()).
			Msg("a container does not say whether somebody watches files in it")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	h, now := &c.hears, time.Now()
	switch {
	case errors.Is(ctx.Err(), context.Canceled): // the caller has left
	case err != nil && r.From == "" && !h.late:
		h.silent, h.late = now.Add(lateFor), true
	case err != nil:
		h.silent = now.Add(silentFor)
	case !done.Watched:
		h.quiet = now.Add(unwatchedFor)
	default:
		h.watched = now
	}
	h.late = h.late && err != nil
	if done.Done {
		h.hasRenamed(path.Join(r.Dir, r.To))
	}
	return done.Watched
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
