package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/pathmap"
)

// A mask belongs to the file that it was put on, and so does a mount that keeps a file from being written.
// When somebody on the host puts another one in its place while commands are running, those commands would
// see or write it. The next call finds another Spec; the watch is for those that are running: their
// containers are expelled as soon as it happens.

// changes are the events that put something under a name, or take away what a mask was put on.
const changes = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_ONLYDIR

// watch is the directories that are looked at: an inotify instance for all containers, and which of them needs
// what. The kernel has one watch for a directory, whoever asks, so a container says under which of its own names
// it has it: what one container calls a directory says nothing about another's.
type watch struct {
	on   bool
	fd   int                                                    // inotify; it is Watch's to close
	dirs map[int]map[dockerexec.Fingerprint]map[string]children // by watch descriptor: who needs it, and the names on the host
	read uint64                                                 // bytes of events that were looked at
	load *load
}

// position is how many bytes of events there were until now, looked at or not.
func (w watch) position() uint64 {
	if !w.on {
		return 0
	}
	waiting, err := unix.IoctlGetInt(w.fd, unix.TIOCINQ)
	if err != nil {
		return 0 // what came before counts, too
	}
	return w.read + uint64(waiting)
}

// watched is a directory and what a container calls it.
type watched struct {
	wd   int
	name string
}

// add watches an open directory, which a container calls by a name on the host.
func (w watch) add(dir int, name string, want children, holder dockerexec.Fingerprint) (watched, error) {
	wd, err := unix.InotifyAddWatch(w.fd, fmt.Sprintf("/proc/self/fd/%d", dir), changes)
	if err != nil {
		return watched{}, err
	}
	if w.dirs[wd] == nil {
		w.dirs[wd] = map[dockerexec.Fingerprint]map[string]children{}
	}
	if w.dirs[wd][holder] == nil {
		w.dirs[wd][holder] = map[string]children{}
	}
	w.dirs[wd][holder][name] = want
	return watched{wd, name}, nil
}

// keep takes away what else a container has watched, and the kernel's watches that nobody needs any more.
func (w watch) keep(holder dockerexec.Fingerprint, still map[watched]bool) {
	for wd, holders := range w.dirs {
		names := holders[holder]
		maps.DeleteFunc(names, func(name string, _ children) bool { return !still[watched{wd, name}] })
		if len(names) > 0 {
			continue
		}
		delete(holders, holder)
		if len(holders) == 0 {
			delete(w.dirs, wd)
			_, _ = unix.InotifyRmWatch(w.fd, uint32(wd)) // it may be gone with its directory
		}
	}
}

// laid is a Spec that has a container, and the position from which on events are about it.
type laid struct {
	dockerexec.Spec
	since uint64
}

// Watch expels containers whose masks hide something else than they did, until ctx ends. expel is
// called for each of them, with no lock held; it may be called again for the same one.
func (g *Ground) Watch(ctx context.Context, expel func(dockerexec.Fingerprint)) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("cannot watch the homes: %w", err)
	}
	file := os.NewFile(uintptr(fd), "inotify")
	g.mu.Lock()
	g.watched = newWatch(fd)
	var unseen []dockerexec.Fingerprint
	for fingerprint, known := range g.laid {
		if err := g.watchSpec(known.Spec); err != nil {
			g.log.Error().Err(err).Str("user", known.User).Msg("a container goes: what it must not see cannot be watched")
			unseen = append(unseen, fingerprint)
		}
		g.laid[fingerprint] = laid{Spec: known.Spec}
	}
	g.mu.Unlock()
	end := func() {
		g.mu.Lock()
		g.watched.on = false
		g.mu.Unlock()
		_ = file.Close() // waits for whoever is looking at events, who needs the lock
	}
	defer end()
	defer context.AfterFunc(ctx, end)()
	for _, fingerprint := range unseen {
		expel(fingerprint)
	}
	for {
		gone, err := g.await(file)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, os.ErrClosed) {
				return nil
			}
			return fmt.Errorf("cannot watch the homes any more: %w", err)
		}
		for _, fingerprint := range gone {
			expel(fingerprint)
		}
		select {
		case <-time.After(between): // what comes meanwhile is looked at together
		case <-ctx.Done():
		}
	}
}

// await waits for events, and returns the containers that have to go for them.
func (g *Ground) await(file *os.File) (gone []dockerexec.Fingerprint, err error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	err = conn.Read(func(fd uintptr) bool {
		// Events are taken and looked at in one go, so that all others are still in the kernel.
		g.mu.Lock()
		defer g.mu.Unlock()
		n, err := unix.Read(int(fd), g.watched.load.buffer)
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
			return false
		case err != nil:
			failed = err
		default:
			gone = g.changed(g.watched.load.buffer[:n])
		}
		return true
	})
	return gone, errors.Join(err, failed)
}

// maxWatched is how many directories one container may have watched, and maxWatchedOfUser all of a user's: the
// kernel has so many for all users. One container's is more than policy.MaxRestrictions and MaxDepth allow.
const (
	maxWatched       = 4000
	maxWatchedOfUser = 8000
)

// watchSpec watches the directories in which something that is to be hidden may appear, as they are now, and no
// others for that container; g.mu is held. A container of which not all can be watched must not run. A directory
// that was watched before stays so in between: no event is lost.
func (g *Ground) watchSpec(spec dockerexec.Spec) error {
	if !g.watched.on {
		return nil
	}
	dirs := g.dirsOf(spec)
	if len(dirs) > maxWatched {
		return fmt.Errorf("%d directories would have to be watched, more than the %d for one container", len(dirs), maxWatched)
	}
	if n := len(dirs) + g.watchedOf(spec); n > maxWatchedOfUser {
		return fmt.Errorf("%d directories would have to be watched, more than the %d for all containers of one user: %w", n, maxWatchedOfUser, cerrdefs.ErrUnavailable)
	}
	open := g.sites(spec)
	defer open.close()
	now := map[watched]bool{}
	for name, at := range dirs {
		dir, err := g.watchDir(open, name, at, spec.Fingerprint())
		switch {
		case err == nil:
			now[dir] = true
		case errors.Is(err, unix.ENOSPC):
			return fmt.Errorf("the kernel watches no more directories for this user: raise fs.inotify.max_user_watches: %w", cerrdefs.ErrUnavailable)
		case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP):
			return fmt.Errorf("cannot watch what is hidden: %w", err)
		}
		// What is no directory, or not there, has nothing in it; its own appearance is an event above. That goes
		// for a link, too: what is behind it is not looked at.
	}
	g.watched.keep(spec.Fingerprint(), now)
	return nil
}

// watchDir watches a directory of the host by its descriptor, which no link has led to.
func (g *Ground) watchDir(open *sites, name string, at lookout, holder dockerexec.Fingerprint) (watched, error) {
	site, rest, err := open.in(at.target)
	if err != nil {
		return watched{}, err
	}
	if rest == "" {
		rest = "."
	}
	dir, err := beneath(site.fd, rest, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return watched{}, err
	}
	defer unix.Close(dir)
	return g.watched.add(dir, name, at.want, holder)
}

// watchedOf is how many directories the other containers of a Spec's user have watched.
func (g *Ground) watchedOf(spec dockerexec.Spec) (n int) {
	own := spec.Fingerprint()
	for _, holders := range g.watched.dirs {
		for holder, names := range holders {
			if known, ok := g.laid[holder]; ok && holder != own && known.User == spec.User {
				n += len(names)
			}
		}
	}
	return n
}

// unwatch takes away the watches that no other container needs; g.mu is held.
func (g *Ground) unwatch(spec dockerexec.Spec) {
	if g.watched.on {
		g.watched.keep(spec.Fingerprint(), nil)
	}
}

// occurred are the paths of the host at which something has appeared or gone, by the container that calls them so,
// with the position of the last event about each.
type occurred map[dockerexec.Fingerprint]map[string]uint64

func (o occurred) add(holder dockerexec.Fingerprint, name string, at uint64) {
	if o[holder] == nil {
		o[holder] = map[string]uint64{}
	}
	o[holder][name] = at
}

// events reads what inotify has told; lost says that it has told too little. g.mu is held.
func (g *Ground) events(data []byte) (happened occurred, lost bool) {
	happened = occurred{}
	for len(data) >= unix.SizeofInotifyEvent {
		event := (*unix.InotifyEvent)(unsafe.Pointer(&data[0]))
		size := unix.SizeofInotifyEvent + int(event.Len)
		name, _, _ := bytes.Cut(data[unix.SizeofInotifyEvent:size], []byte{0})
		data = data[size:]
		g.watched.read += uint64(size)
		lost = lost || event.Mask&unix.IN_Q_OVERFLOW != 0
		for holder, dirs := range g.watched.dirs[int(event.Wd)] {
			g.watched.load.events[g.laid[holder].User]++
			for dir, want := range dirs {
				if want.has(name) {
					happened.add(holder, filepath.Join(dir, string(name)), g.watched.read)
				}
			}
		}
		if event.Mask&unix.IN_IGNORED != 0 {
			delete(g.watched.dirs, int(event.Wd))
		}
	}
	return happened, lost
}

// changed are the containers that have to go after these events; g.mu is held.
func (g *Ground) changed(data []byte) (gone []dockerexec.Fingerprint) {
	happened, lost := g.events(data)
	loudest := g.watched.load.drained(lost || len(data) < len(g.watched.load.buffer)/2)
	for fingerprint, known := range g.laid {
		if !lost && len(happened[fingerprint]) == 0 {
			continue
		}
		touched, broken := g.touches(happened[fingerprint], known)
		if !lost && !touched {
			continue
		}
		begun := time.Now()
		err := g.watchSpec(known.Spec)
		held := err == nil && !broken && g.holds(known.Spec)
		if lost && loudest[known.User] || !lost && !g.watched.load.spend(known.User, begun, time.Since(begun)) {
			err = errTooMuch
		}
		if err != nil {
			g.log.Error().Err(err).Str("user", known.User).Msg("a container goes: what it must not see cannot be watched")
		}
		if err != nil || !held {
			gone = append(gone, fingerprint)
		}
	}
	return gone
}

// touches says whether a path at which something has appeared or gone is one of a Spec's masks or guarded
// mounts, or above or below one. broken says that such a mount is lost: it does not come back, also when the
// same file does.
func (g *Ground) touches(appeared map[string]uint64, known laid) (touched, broken bool) {
	for _, m := range known.Masks {
		if where, rest, ok := g.shownBy(known.Spec, m.Target); ok {
			for name := range appeared {
				touched = touched || pathmap.Within(name, where.at(rest)) || pathmap.Within(where.at(rest), name)
			}
		}
	}
	for _, m := range guarded(known.Spec) {
		if where, rest, ok := g.shownBy(known.Spec, m.Target); ok {
			for name, at := range appeared {
				above := pathmap.Within(where.at(rest), name)
				touched, broken = touched || above, broken || (above && at > known.since)
			}
		}
	}
	return touched, broken
}

// holds says whether a Spec's masks still hide what they were put on, and its guarded mounts are of what is
// there; g.mu is held.
func (g *Ground) holds(spec dockerexec.Spec) bool {
	open := g.sites(spec)
	defer open.close()
	for _, m := range spec.Masks {
		site, rest, err := open.of(m.Target)
		if err != nil {
			return false
		}
		if site == nil {
			continue
		}
		there, err := lookAt(site.fd, rest)
		if err != nil || there.hiddenBy(m) != m.ID || (m.Place != "" && !there.exists) {
			return false
		}
	}
	for _, m := range guarded(spec) {
		site, rest, err := open.in(m.Target)
		if err != nil {
			return false
		}
		if there, err := lookAt(site.fd, rest); err != nil || !there.exists || !there.id.Same(m.ID) {
			return false
		}
	}
	return true
}
