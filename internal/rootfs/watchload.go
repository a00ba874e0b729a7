package rootfs

import (
	"errors"
	"maps"
	"path"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
)

// All containers share one queue in the kernel and one goroutine that reads it, so what happens in
// one user's directories must not take much of either. Names that no container asks about are
// skipped as they are read. A user who fills the queue anyway, or keeps changing what is to be
// hidden, loses the containers: they are ended rather than watched with a delay.

// errTooMuch is why such containers are ended.
var errTooMuch = errors.New("there are more changes than can be checked")

const (
	// between is how long the watch waits after some events before it reads the next ones.
	between = 5 * time.Millisecond
	// maxLooks is how much time per second may be spent on checking one user's containers again.
	maxLooks = 250 * time.Millisecond
	// queueSize is more bytes than the kernel keeps of events with short names
	// (fs.inotify.max_queued_events is 16384).
	queueSize = 1 << 20
)

// load is the load that users cause. It is guarded by Preparer.mu.
type load struct {
	buffer []byte
	events map[string]int // by user, since the queue was empty
	looks  map[string]look
}

// look is the time spent on one user since a point in time.
type look struct {
	since time.Time
	took  time.Duration
}

func newWatches(fd int) watches {
	return watches{
		on: true, fd: fd, dirs: map[int]map[dockerexec.Fingerprint]map[string]children{},
		held: map[dockerexec.Fingerprint]map[watchedDir]bool{},
		load: &load{buffer: make([]byte, queueSize), events: map[string]int{},
			looks: map[string]look{}},
	}
}

// drained returns the users with the most events since the queue was last empty, if it is empty
// now.
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

// spend adds time spent on a user's containers, and reports whether it is still within maxLooks.
func (l *load) spend(user string, now time.Time, took time.Duration) bool {
	spent, ok := l.looks[user]
	if !ok || now.Sub(spent.since) > time.Second {
		maps.DeleteFunc(l.looks, func(_ string, old look) bool {
			return now.Sub(old.since) > time.Second
		})
		spent = look{since: now}
	}
	spent.took += took
	l.looks[user] = spent
	return spent.took <= maxLooks
}

// children are the names in a directory that a container's masks and protected mounts are about;
// nil means all names.
type children map[string]bool

// has reports whether an event is about one of them. An event without a name is about the directory
// itself.
func (c children) has(name []byte) bool { return c == nil || len(name) == 0 || c[string(name)] }

// wantedDir is a directory to watch: its container path, and the names in it that matter.
type wantedDir struct {
	target string
	want   children
}

// wantedDirs returns the host directories with a Spec's masks and protected mounts, and the
// directories above them.
func (p *Preparer) wantedDirs(spec dockerexec.Spec) map[string]wantedDir {
	dirs := map[string]wantedDir{}
	for _, m := range spec.Masks {
		p.addWanted(dirs, spec, m.Target, "")
	}
	for _, link := range spec.Symlinks {
		p.addWanted(dirs, spec, path.Dir(link.Target), path.Base(link.Target))
	}
	for _, m := range protectedMounts(spec) {
		p.addWanted(dirs, spec, path.Dir(m.Target), path.Base(m.Target))
	}
	return dirs
}

// addWanted adds a directory and those above it. In it, one child matters, or everything if child
// is empty.
func (p *Preparer) addWanted(dirs map[string]wantedDir, spec dockerexec.Spec, target,
	child string) {
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
