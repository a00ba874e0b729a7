package rootfs

import (
	"bytes"
	"fmt"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
)

// watchedEvents are those that put something under a name, or take away what a mask was mounted on.
const watchedEvents = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_ONLYDIR

// fileEvents are those that make a file that stands in something else.
const fileEvents = unix.IN_MODIFY | unix.IN_ATTRIB

// watches are the directories, and the files that stand in, of the one inotify instance for all containers, and the containers
// that need them. The kernel has one watch per directory, whoever asks for it, so each container
// has its own names for it: one container's name for a directory says nothing about another's.
type watches struct {
	on   bool
	lost bool                                                   // it has failed, and was not on since
	fd   int                                                    // inotify; Watch closes it
	dirs map[int]map[dockerexec.Fingerprint]map[string]children // by watch descriptor and container: its names on the host
	held map[dockerexec.Fingerprint]map[watchedDir]bool         // the same, by container
	read uint64                                                 // bytes of events that were read
	load *load
}

// position returns how many bytes of events there have been so far, read or not.
func (w watches) position() uint64 {
	if !w.on {
		return 0
	}
	waiting, err := unix.IoctlGetInt(w.fd, unix.TIOCINQ)
	if err != nil {
		return 0 // then earlier events count, too
	}
	return w.read + uint64(waiting)
}

// watchedDir is a watched directory by one of its names on the host.
type watchedDir struct {
	wd   int
	name string
}

// add watches what is open for a container, by a name on the host.
func (w watches) add(fd int, name string, events uint32, want children,
	holder dockerexec.Fingerprint) (watchedDir, error) {
	wd, err := unix.InotifyAddWatch(w.fd, fmt.Sprintf("/proc/self/fd/%d", fd), events)
	if err != nil {
		return watchedDir{}, err
	}
	if w.dirs[wd] == nil {
		w.dirs[wd] = map[dockerexec.Fingerprint]map[string]children{}
	}
	if w.dirs[wd][holder] == nil {
		w.dirs[wd][holder] = map[string]children{}
	}
	w.dirs[wd][holder][name] = want
	if w.held[holder] == nil {
		w.held[holder] = map[watchedDir]bool{}
	}
	w.held[holder][watchedDir{wd, name}] = true
	return watchedDir{wd, name}, nil
}

// keep removes a container's other watches, and the kernel's watches that no container needs any
// more.
func (w watches) keep(holder dockerexec.Fingerprint, still map[watchedDir]bool) {
	for dir := range w.held[holder] {
		if still[dir] {
			continue
		}
		w.release(holder, dir)
		holders := w.dirs[dir.wd]
		if delete(holders[holder], dir.name); len(holders[holder]) > 0 {
			continue
		}
		if delete(holders, holder); len(holders) == 0 {
			delete(w.dirs, dir.wd)
			_, _ = unix.InotifyRmWatch(w.fd, uint32(dir.wd)) // it may be gone with its directory
		}
	}
}

// release forgets that a container needs a directory watched.
func (w watches) release(holder dockerexec.Fingerprint, dir watchedDir) {
	if delete(w.held[holder], dir); len(w.held[holder]) == 0 {
		delete(w.held, holder)
	}
}

// ended forgets a watch that the kernel has removed.
func (w watches) ended(wd int) {
	for holder, names := range w.dirs[wd] {
		for name := range names {
			w.release(holder, watchedDir{wd, name})
		}
	}
	delete(w.dirs, wd)
}

// changes are the host paths at which something has appeared or gone, by the container that knows
// them by this name, with the position of the last event about each.
type changes map[dockerexec.Fingerprint]map[string]uint64

func (c changes) add(holder dockerexec.Fingerprint, name string, at uint64) {
	if c[holder] == nil {
		c[holder] = map[string]uint64{}
	}
	c[holder][name] = at
}

// parse returns the changes that inotify events report, and charges what that takes to their users.
// lost says that some events were dropped.
func (w *watches) parse(events []byte,
	of map[dockerexec.Fingerprint]mounted) (changed changes, lost bool) {
	changed = changes{}
	begun, looks, kept := time.Now(), 0, map[string]int{}
	for len(events) >= unix.SizeofInotifyEvent {
		event := (*unix.InotifyEvent)(unsafe.Pointer(&events[0]))
		size := unix.SizeofInotifyEvent + int(event.Len)
		name, _, _ := bytes.Cut(events[unix.SizeofInotifyEvent:size], []byte{0})
		events = events[size:]
		w.read += uint64(size)
		lost = lost || event.Mask&unix.IN_Q_OVERFLOW != 0
		for holder, dirs := range w.dirs[int(event.Wd)] {
			w.load.events[of[holder].User]++
			for dir, want := range dirs {
				looks++
				if want.has(name) {
					kept[of[holder].User]++
					changed.add(holder, filepath.Join(dir, string(name)), w.read)
				}
			}
		}
		if event.Mask&unix.IN_IGNORED != 0 {
			w.ended(int(event.Wd))
		}
	}
	each := time.Since(begun) / time.Duration(max(looks, 1))
	for user, n := range kept {
		w.load.spend(user, begun, each*time.Duration(n))
	}
	return changed, lost
}
