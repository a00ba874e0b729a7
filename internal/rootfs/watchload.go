package rootfs

import (
	"errors"
	"maps"
	"path"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
)

// All containers share one queue of the kernel's and one goroutine that reads it, so what happens in one user's
// directories must not take much of either. Names that no container asks about are passed over as they are read. Whoever
// fills the queue all the same, or keeps what is to be hidden changing, loses its containers: they are ended rather than
// watched with a delay.

// errTooMuch is why such containers go.
var errTooMuch = errors.New("more happens there than can be looked at")

const (
	// between is how long after some events the next ones are read.
	between = 5 * time.Millisecond
	// maxLooks is how much time in each second may be spent on looking at the containers of one user again.
	maxLooks = 250 * time.Millisecond
	// queueSize is more bytes than the kernel keeps of events with short names (fs.inotify.max_queued_events is 16384).
	queueSize = 1 << 20
)

// load is what users cause. It is guarded by Preparer.mu.
type load struct {
	buffer []byte
	events map[string]int // by user, since the queue was empty
	looks  map[string]look
}

// look is the time that was spent for one user since a point in time.
type look struct {
	since time.Time
	took  time.Duration
}

func newWatches(fd int) watches {
	return watches{
		on: true, fd: fd, dirs: map[int]map[dockerexec.Fingerprint]map[string]children{}, held: map[dockerexec.Fingerprint]map[watchedDir]bool{},
		load: &load{buffer: make([]byte, queueSize), events: map[string]int{}, looks: map[string]look{}},
	}
}

// drained returns the users with the most events since the queue was empty, if it is empty now.
func (l *load) drained(empty bool) (loudest map[string]bool) {
	if !empty {
		return nil
	}
	most := 1
	for user, n := range l.events {
		if n > most {
			most, loudest = n, nil
		}
		if n == most {
			if loudest == nil {
				loudest = map[string]bool{}
			}
			loudest[user] = true
		}
	}
	clear(l.events)
	return loudest
}

// spend reports whether so much time may be spent on a user's containers.
func (l *load) spend(user string, now time.Time, took time.Duration) bool {
	spent, ok := l.looks[user]
	if !ok || now.Sub(spent.since) > time.Second {
		maps.DeleteFunc(l.looks, func(_ string, old look) bool { return now.Sub(old.since) > time.Second })
		spent = look{since: now}
	}
	spent.took += took
	l.looks[user] = spent
	return spent.took <= maxLooks
}

// children are the names in a directory that a container's masks and protected mounts are about; nil is all of them.
type children map[string]bool

// has reports whether an event is about one of them; one without a name is about the directory itself.
func (c children) has(name []byte) bool { return c == nil || len(name) == 0 || c[string(name)] }

// wantedDir is a directory that is to be watched: its path inside, and the names in it that matter.
type wantedDir struct {
	target string
	want   children
}

// wantedDirs returns the directories of the host with the masks of a Spec and its protected mounts, and those that hold
// these.
func (p *Preparer) wantedDirs(spec dockerexec.Spec) map[string]wantedDir {
	dirs := map[string]wantedDir{}
	for _, m := range spec.Masks {
		p.addWanted(dirs, spec, m.Target, "")
	}
	for _, m := range protectedMounts(spec) {
		p.addWanted(dirs, spec, path.Dir(m.Target), path.Base(m.Target))
	}
	return dirs
}

// addWanted adds a directory, in which one child matters or, without one, all, and those that hold it.
func (p *Preparer) addWanted(dirs map[string]wantedDir, spec dockerexec.Spec, target, child string) {
	view, rest, ok := p.viewOf(spec, target)
	if !ok {
		return
	}
	for ; rest != "." && rest != ""; rest = path.Dir(rest) {
		addChild(dirs, view.at(rest), path.Join(view.target, rest), child)
		child = path.Base(rest)
	}
	addChild(dirs, view.dir, view.target, child)
}

func addChild(dirs map[string]wantedDir, dir, target, child string) {
	at, known := dirs[dir]
	switch {
	case child == "":
		at = wantedDir{target: target}
	case !known:
		at = wantedDir{target, children{child: true}}
	case at.want != nil:
		at.want[child] = true
	}
	dirs[dir] = at
}
