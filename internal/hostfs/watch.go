package hostfs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"
	"unsafe"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Change is what happened to an entry.
type Change int

// The changes. A rename is Renamed for the old name and Created for the new one.
const (
	Created Change = iota + 1
	Written
	Removed
	Renamed
	Chmodded
)

// Event is a change in a watched directory.
type Event struct {
	// Name is relative to that directory.
	Name   string
	Change Change
}

const (
	watchedChanges = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
	// maxWatched bounds the directories of one Watcher, and maxKnown the names that it knows.
	maxWatched = 1000
	maxKnown   = 50_000
	// maxAppeared bounds the names that one that need not have all reads when directories appear.
	maxAppeared = 5000
)

// Watcher reports changes in a directory. Next is for one goroutine at a time.
type Watcher struct {
	root      *Root
	name      string
	recursive bool
	leaves    func(leaf string) bool // directories that are left out; nil for a Watcher that has all
	left      int                    // names that it may still read, unless it has all
	most      int                    // directories
	events    *os.File               // inotify
	dirs      map[int32]*watchedDir  // by watch descriptor
	known     int
	writes    map[uint32]bool // cookies of renames by which a Writer puts a file in place
}

type watchedDir struct {
	rel   string // below the watched one; "" for itself
	names map[string]bool
}

// Watch starts to watch a directory, and with recursive also those below it. Root must stay open
// until the Watcher is closed.
func (r *Root) Watch(name string, recursive bool) (*Watcher, error) {
	return r.watch(name, recursive, nil, maxWatched)
}

// WatchMost is Watch for a directory and those below it, without those that leaves says and, where
// there are more than most, which is 1,000 at most, or too many names to be read for that, without
// the rest. It knows no names, so who puts a file in place of another one has Created it; and nothing
// is Chmodded.
func (r *Root) WatchMost(name string, most int, leaves func(leaf string) bool) (*Watcher, error) {
	return r.watch(name, true, leaves, most)
}

func (r *Root) watch(name string, recursive bool, leaves func(string) bool, most int) (*Watcher, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, errs.Busy("the host has no more watches to give: %v", err)
	}
	w := &Watcher{
		root: r, name: name, recursive: recursive, leaves: leaves, events: os.NewFile(uintptr(fd), "inotify"),
		dirs: map[int32]*watchedDir{}, writes: map[uint32]bool{}, left: maxKnown, most: min(most, maxWatched),
	}
	defer r.walk()()
	if err := r.asOwner(func() error { return w.add("", nil) }); err != nil {
		_ = w.events.Close()
		return nil, err
	}
	return w, nil
}

// Close also ends a Next that waits.
func (w *Watcher) Close() { _ = w.events.Close() }

// add watches a directory as the owner, and with recursive also those below it, the nearest first.
// It calls found for the entries that are already there, unless found is nil.
func (w *Watcher) add(rel string, found func(Event)) error {
	waiting, err := w.addOne(rel, found)
	for len(waiting) > 0 && err == nil && !w.isFull() {
		at := waiting[0]
		below, failed := w.addOne(at, found)
		if cerrdefs.IsResourceExhausted(failed) {
			err = failed // what has gone meanwhile, or may not be read, is not watched
		}
		waiting = append(waiting[1:], below...)
		switch {
		case len(waiting) <= w.most:
		case w.leaves != nil:
			waiting = waiting[:w.most]
		case err == nil:
			err = w.tooMany()
		}
	}
	if w.leaves != nil && cerrdefs.IsResourceExhausted(err) && len(w.dirs) > 0 {
		return nil
	}
	return err
}

// isFull reports whether a Watcher that need not have all has as much as it may.
func (w *Watcher) isFull() bool {
	return w.leaves != nil && (len(w.dirs) == w.most || w.left <= 0)
}

func (w *Watcher) tooMany() error {
	return errs.Busy("more than %d directories below %s would have to be watched", w.most,
		quoted(w.name))
}

// Dirs returns the first directories that are watched, at most so many.
func (w *Watcher) Dirs(most int) (names []string) {
	for _, d := range w.dirs {
		names = append(names, d.rel)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(strings.Count(a, "/")-strings.Count(b, "/"), strings.Compare(a, b))
	})
	return names[:min(len(names), most)]
}

// addOne watches a directory by descriptor, and returns the directories in it that must be watched
// too. It leaves nothing open, because a tenant can nest directories as deep as it likes.
func (w *Watcher) addOne(rel string, found func(Event)) (below []string, _ error) {
	fd, err := openBeneath(w.root.dir, path.Join(w.name, rel), asList, 0)
	if err != nil {
		return nil, w.root.fail(path.Join(w.name, rel), err)
	}
	dir := os.NewFile(uintptr(fd), rel)
	defer dir.Close()
	d, err := w.watch(fd, rel)
	if err != nil {
		return nil, err
	}
	if w.leaves != nil {
		names, _ := dir.Readdirnames(max(w.left, 1)) // of a directory that cannot be read, none
		w.left -= len(names)
		return w.dirsOf(fd, rel, names, found), nil
	}
	names, more, err := firstNames(dir, maxKnown)
	if err != nil {
		return nil, classify(path.Join(w.name, rel), err)
	}
	if w.known += len(names); more || w.known > maxKnown {
		return nil, errs.Busy("more than %d files below %s would have to be watched", maxKnown,
			quoted(w.name))
	}
	for _, leaf := range names {
		d.names[leaf] = true
	}
	return w.dirsOf(fd, rel, names, found), nil
}

// dirsOf calls found for what is in a directory, and returns the directories that must be watched,
// too.
func (w *Watcher) dirsOf(fd int, rel string, names []string, found func(Event)) (below []string) {
	for _, leaf := range names {
		if found != nil && !strings.HasPrefix(leaf, temporaryPrefix) {
			found(Event{path.Join(rel, leaf), Created})
		}
		if !w.recursive || len(below) > maxWatched || w.leaves != nil && w.leaves(leaf) {
			continue
		}
		if info, err := inspect(fd, leaf); err == nil && info.Type == Directory {
			below = append(below, path.Join(rel, leaf))
		}
	}
	return below
}

// watch makes the kernel report changes in an open directory.
func (w *Watcher) watch(fd int, rel string) (*watchedDir, error) {
	if len(w.dirs) == w.most {
		return nil, w.tooMany()
	}
	wd := 0
	err := w.control(func(events int) (err error) {
		changes := uint32(watchedChanges)
		if w.leaves != nil {
			changes &^= unix.IN_ATTRIB
		}
		wd, err = unix.InotifyAddWatch(events, fmt.Sprintf("/proc/self/fd/%d", fd), changes)
		return err
	})
	if errors.Is(err, unix.ENOSPC) {
		return nil, errs.Busy("the host has no more watches to give")
	}
	if err != nil {
		return nil, classify(path.Join(w.name, rel), err)
	}
	if before := w.dirs[int32(wd)]; before != nil { // the same directory, which was reported twice
		w.known -= len(before.names)
	}
	d := &watchedDir{rel: rel, names: map[string]bool{}}
	w.dirs[int32(wd)] = d
	return d, nil
}

// Next waits for changes. The error is ctx's cause, or says that the directory can no longer be
// watched, for example because there were too many changes to keep.
func (w *Watcher) Next(ctx context.Context) ([]Event, error) {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = w.events.SetReadDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-ended // or it would end the next read
			_ = w.events.SetReadDeadline(time.Time{})
		}
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := w.events.Read(buffer)
		if err != nil && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			return nil, err
		}
		var list []Event
		if list, err = w.read(buffer[:n]); err != nil {
			return nil, err
		}
		if len(list) > 0 {
			return list, nil
		}
	}
}

// read converts the kernel's events. It reads the directories that appear, and a tenant can move
// those in and out as often as it likes, so it counts as one of the user's walks.
func (w *Watcher) read(events []byte) (list []Event, err error) {
	if w.recursive {
		defer w.root.walk()()
	}
	w.left = maxAppeared
	err = w.root.asOwner(func() (err error) {
		list, err = w.convert(events)
		return err
	})
	return list, err
}

func (w *Watcher) convert(events []byte) (list []Event, _ error) {
	for len(events) >= unix.SizeofInotifyEvent {
		event := (*unix.InotifyEvent)(unsafe.Pointer(&events[0]))
		size := unix.SizeofInotifyEvent + int(event.Len)
		name, _, _ := bytes.Cut(events[unix.SizeofInotifyEvent:size], []byte{0})
		events = events[size:]
		if event.Mask&unix.IN_Q_OVERFLOW != 0 {
			return nil, errs.Busy("more changes came than were read: watch the directory again")
		}
		d := w.dirs[event.Wd]
		switch {
		case d == nil:
		case event.Mask&unix.IN_IGNORED != 0:
			delete(w.dirs, event.Wd)
			w.known -= len(d.names)
			if d.rel == "" {
				return nil, errs.NotFound("%s is not there any more", quoted(w.name))
			}
		case len(name) > 0:
			if err := w.change(d, string(name), event, func(e Event) {
				list = append(list, e)
			}); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

// change converts one event. A Writer's temporary names are left out: its rename counts as a write.
func (w *Watcher) change(d *watchedDir, name string, event *unix.InotifyEvent,
	tell func(Event)) error {
	at, temporary := path.Join(d.rel, name), strings.HasPrefix(name, temporaryPrefix)
	switch {
	case temporary && event.Mask&unix.IN_MOVED_FROM != 0:
		if len(w.writes) < 1000 { // a tenant can leave cookies, too
			w.writes[event.Cookie] = true
		}
		return nil
	case temporary:
		return nil
	case event.Mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		wrote := w.writes[event.Cookie]
		delete(w.writes, event.Cookie)
		if !wrote || !d.names[name] {
			tell(Event{at, Created})
		}
		if wrote {
			tell(Event{at, Written})
		}
		if !d.names[name] && w.leaves == nil {
			d.names[name] = true
			w.known++
		}
		if w.known > maxKnown {
			return errs.Busy("more than %d files below %s would have to be watched", maxKnown,
				quoted(w.name))
		}
		if w.recursive && event.Mask&unix.IN_ISDIR != 0 && (w.leaves == nil || !w.leaves(name)) {
			if err := w.add(at, tell); cerrdefs.IsResourceExhausted(err) {
				return err
			}
		}
	case event.Mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		change := Removed
		if event.Mask&unix.IN_MOVED_FROM != 0 {
			change = Renamed
			if event.Mask&unix.IN_ISDIR != 0 {
				w.forget(at)
			}
		}
		if d.names[name] {
			delete(d.names, name)
			w.known--
		}
		tell(Event{at, change})
	case event.Mask&unix.IN_MODIFY != 0:
		tell(Event{at, Written})
	case event.Mask&unix.IN_ATTRIB != 0:
		tell(Event{at, Chmodded})
	}
	return nil
}

// forget stops watching a directory that was moved away, and those below it: it has another name
// now.
func (w *Watcher) forget(rel string) {
	for wd, d := range w.dirs {
		if d.rel == rel || strings.HasPrefix(d.rel, rel+"/") {
			_ = w.control(func(events int) error {
				_, err := unix.InotifyRmWatch(events, uint32(wd)) // IN_IGNORED follows
				return err
			})
		}
	}
}

// control calls do with the descriptor while it is open.
func (w *Watcher) control(do func(events int) error) error {
	conn, err := w.events.SyscallConn()
	if err != nil {
		return err
	}
	var done error
	if err := conn.Control(func(fd uintptr) { done = do(int(fd)) }); err != nil {
		return err
	}
	return done
}
