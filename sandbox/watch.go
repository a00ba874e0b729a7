package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"unsafe"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
)

// A mask belongs to the file that it was put on, and so does a mount that keeps a file from being written.
// When somebody on the host puts another one in its place while commands are running, those commands would
// see or write it. The next call finds another Spec; the watch is for those that are running: their
// containers are expelled as soon as it happens.

// changes are the events that put something under a name, or take away what a mask was put on.
const changes = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_ONLYDIR

// watch is the directories that are looked at.
type watch struct {
	on   bool
	fd   int            // inotify; it is Watch's to close
	dirs map[int]string // by watch descriptor: the directory on the host
	read uint64         // bytes of events that were looked at
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
	g.watched = watch{on: true, fd: fd, dirs: map[int]string{}}
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
	}
}

// await waits for events, and returns the containers that have to go for them.
func (g *Ground) await(file *os.File) (gone []dockerexec.Fingerprint, err error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	buffer := make([]byte, 64<<10)
	var failed error
	err = conn.Read(func(fd uintptr) bool {
		// Events are taken and looked at in one go, so that all others are still in the kernel.
		g.mu.Lock()
		defer g.mu.Unlock()
		n, err := unix.Read(int(fd), buffer)
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
			return false
		case err != nil:
			failed = err
		default:
			gone = g.changed(buffer[:n])
		}
		return true
	})
	return gone, errors.Join(err, failed)
}

// maxWatched is how many directories one container may have watched, for the kernel has so many for all of them:
// more than policy.MaxRestrictions and MaxDepth allow.
const maxWatched = 4000

// watchSpec adds the directories in which something that is to be hidden may appear; g.mu is held. A container
// of which not all can be watched must not run.
func (g *Ground) watchSpec(spec dockerexec.Spec) error {
	if !g.watched.on {
		return nil
	}
	dirs := g.dirsOf(spec)
	if len(dirs) > maxWatched {
		return fmt.Errorf("%d directories would have to be watched, more than the %d for one container", len(dirs), maxWatched)
	}
	for dir := range dirs {
		wd, err := unix.InotifyAddWatch(g.watched.fd, dir, changes|unix.IN_DONT_FOLLOW)
		switch {
		case err == nil:
			g.watched.dirs[wd] = dir
		case errors.Is(err, unix.ENOSPC):
			return fmt.Errorf("the kernel watches no more directories for this user: raise fs.inotify.max_user_watches: %w", cerrdefs.ErrUnavailable)
		case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP):
			return fmt.Errorf("cannot watch what is hidden: %w", err)
		}
		// What is no directory, or not there, has nothing in it; its own appearance is an event above.
	}
	return nil
}

// dirsOf are the directories of the host with the masks of a Spec and its guarded mounts, and those that hold
// these.
func (g *Ground) dirsOf(spec dockerexec.Spec) map[string]bool {
	dirs := map[string]bool{}
	for _, target := range watchedTargets(spec) {
		if where, rest, ok := g.shownBy(spec, target); ok {
			for dirs[where.dir] = true; rest != "." && rest != ""; rest = path.Dir(rest) {
				dirs[where.at(rest)] = true
			}
		}
	}
	return dirs
}

// watchedTargets are paths inside under which, or in which, something must not appear or go.
func watchedTargets(spec dockerexec.Spec) []string {
	var all []string
	for _, m := range spec.Masks {
		all = append(all, m.Target)
	}
	for _, m := range guarded(spec) {
		all = append(all, path.Dir(m.Target))
	}
	return all
}

// unwatch takes away the watches that no container needs any more; g.mu is held.
func (g *Ground) unwatch(spec dockerexec.Spec) {
	gone := g.dirsOf(spec)
	for _, other := range g.laid {
		for dir := range g.dirsOf(other.Spec) {
			delete(gone, dir)
		}
	}
	for wd, dir := range g.watched.dirs {
		if g.watched.on && gone[dir] {
			_, _ = unix.InotifyRmWatch(g.watched.fd, uint32(wd))
			delete(g.watched.dirs, wd)
		}
	}
}

// changed are the containers that have to go after these events; g.mu is held.
func (g *Ground) changed(events []byte) []dockerexec.Fingerprint {
	appeared := map[string]uint64{} // the position of the last event about each path
	lost := false
	for len(events) >= unix.SizeofInotifyEvent {
		event := (*unix.InotifyEvent)(unsafe.Pointer(&events[0]))
		name := events[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+int(event.Len)]
		size := unix.SizeofInotifyEvent + int(event.Len)
		events = events[size:]
		g.watched.read += uint64(size)
		lost = lost || event.Mask&unix.IN_Q_OVERFLOW != 0
		dir, known := g.watched.dirs[int(event.Wd)]
		if event.Mask&unix.IN_IGNORED != 0 {
			delete(g.watched.dirs, int(event.Wd))
			continue
		}
		if known {
			name, _, _ := bytes.Cut(name, []byte{0})
			appeared[filepath.Join(dir, string(name))] = g.watched.read
		}
	}
	var gone []dockerexec.Fingerprint
	for fingerprint, known := range g.laid {
		touched, broken := g.touches(appeared, known)
		if !lost && !touched {
			continue
		}
		if err := g.watchSpec(known.Spec); err != nil {
			g.log.Error().Err(err).Str("user", known.User).Msg("a container goes: what it must not see cannot be watched")
			broken = true
		}
		if broken || !g.holds(known.Spec) {
			gone = append(gone, fingerprint)
		}
	}
	return gone
}

// touches says whether a path at which something has appeared or gone is one of a Spec's masks or guarded
// mounts, or above or below one. broken says that such a mount is lost: it does not come back, also when the
// same file does.
func (g *Ground) touches(appeared map[string]uint64, known laid) (touched, broken bool) {
	if !g.concerns(appeared, known.Spec) {
		return false, false
	}
	for _, m := range known.Masks {
		if where, rest, ok := g.shownBy(known.Spec, m.Target); ok {
			for name := range appeared {
				touched = touched || within(name, where.at(rest)) || within(where.at(rest), name)
			}
		}
	}
	for _, m := range guarded(known.Spec) {
		if where, rest, ok := g.shownBy(known.Spec, m.Target); ok {
			for name, at := range appeared {
				above := within(where.at(rest), name)
				touched, broken = touched || above, broken || (above && at > known.since)
			}
		}
	}
	return touched, broken
}

// concerns says whether any of the paths is in what a Spec shows.
func (g *Ground) concerns(appeared map[string]uint64, spec dockerexec.Spec) bool {
	home := filepath.Join(g.usersDir, spec.User, "home")
	for name := range appeared {
		if within(name, home) || slices.ContainsFunc(spec.Mounts, func(m dockerexec.Mount) bool { return within(name, m.Source) }) {
			return true
		}
	}
	return false
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
