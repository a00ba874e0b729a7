//go:build linux

package agent

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// On the host nobody knows which container has changed a file. So of what programs have changed, the
// agent is told the changes of its own container, too. These were heard already: the agent hears
// them like any other watcher, and has those heard that came later. Of a directory of which it has
// not been told yet it hears nothing, so a change there may be heard twice, once.

const (
	// ownFor is how much later than a change here was heard a file's content may have changed by it.
	// Of what else has changed, other agents change the time by having it heard: namedFor is the same
	// for that, and how long ago what is gone may have been removed here.
	ownFor   = 100 * time.Millisecond
	namedFor = time.Second
	// nudgedFor is how long a modification that is heard may be the agent's own doing.
	nudgedFor = time.Second
	// maxOwn is how many directories are listened to, and how many paths are known. At either bound
	// all are forgotten.
	maxOwn = 4096

	changesHere = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW
)

// ownChanges are the paths that programs of this container have changed.
type ownChanges struct {
	mu     sync.Mutex
	events *os.File         // inotify; nil while nobody watches
	dirs   map[int32]string // by watch descriptor
	wds    map[string]int32
	at     map[string]time.Time // when a change of a path was heard
	nudged map[string]time.Time // when the agent had a modification heard, until it hears that itself
}

var own ownChanges

// others returns those of paths whose last change was not made here; modified are those of them with
// other content. The thread is the tenant's.
func (o *ownChanges) others(paths, modified []string) (list []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.dirs) >= maxOwn || len(o.at) >= maxOwn || len(o.nudged) >= maxOwn {
		o.end()
	}
	if o.events == nil && o.begin() != nil {
		return nil
	}
	now, listened := time.Now(), map[string]bool{}
	for _, path := range paths {
		if dir := filepath.Dir(path); !listened[dir] {
			listened[dir] = true
			o.listen(dir)
		}
		hasModified := slices.Contains(modified, path)
		if o.isOwn(path, hasModified, now) {
			continue
		}
		if list = append(list, path); hasModified {
			o.nudged[path] = now
		}
	}
	return list
}

func (o *ownChanges) isOwn(path string, modified bool, now time.Time) bool {
	at, heard := o.at[path]
	if !heard {
		return false
	}
	var st unix.Stat_t
	switch {
	case unix.Lstat(path, &st) != nil:
		return now.Sub(at) < namedFor
	case modified:
		return time.Unix(st.Mtim.Unix()).Before(at.Add(ownFor))
	default:
		return time.Unix(st.Ctim.Unix()).Before(at.Add(namedFor))
	}
}

// told notes that these paths were heard.
func (o *ownChanges) told(paths []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, path := range paths {
		if o.events != nil && len(o.at) < maxOwn {
			o.at[path] = time.Now()
		}
	}
}

// forget ends it, because nobody watches any more.
func (o *ownChanges) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end()
}

func (o *ownChanges) end() {
	if o.events != nil {
		_ = o.events.Close()
		o.events = nil
	}
}

func (o *ownChanges) begin() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	o.events = os.NewFile(uintptr(fd), "inotify")
	o.dirs, o.wds = map[int32]string{}, map[string]int32{}
	o.at, o.nudged = map[string]time.Time{}, map[string]time.Time{}
	go o.hear(o.events)
	return nil
}

// listen listens to a directory. One of that name may be another one by now, which is not heard of
// where it was replaced elsewhere.
func (o *ownChanges) listen(dir string) {
	conn, err := o.events.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) {
		wd, err := unix.InotifyAddWatch(int(fd), dir, changesHere)
		if err != nil {
			return
		}
		if old, is := o.wds[dir]; is && old != int32(wd) {
			delete(o.dirs, old)
			_, _ = unix.InotifyRmWatch(int(fd), uint32(old))
		}
		delete(o.wds, o.dirs[int32(wd)])
		o.dirs[int32(wd)], o.wds[dir] = dir, int32(wd)
	})
}

// hear notes what changes here until events is closed.
func (o *ownChanges) hear(events *os.File) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := events.Read(buffer)
		if errors.Is(err, os.ErrClosed) || n < unix.SizeofInotifyEvent {
			return
		}
		o.mu.Lock()
		if o.events == events {
			o.note(buffer[:n], time.Now())
		}
		o.mu.Unlock()
	}
}

func (o *ownChanges) note(events []byte, now time.Time) {
	for len(events) >= unix.SizeofInotifyEvent {
		event := (*unix.InotifyEvent)(unsafe.Pointer(&events[0]))
		size := unix.SizeofInotifyEvent + int(event.Len)
		name, _, _ := bytes.Cut(events[unix.SizeofInotifyEvent:size], []byte{0})
		events = events[size:]
		dir, is := o.dirs[event.Wd]
		switch {
		case !is:
		case event.Mask&(unix.IN_IGNORED) != 0:
			delete(o.dirs, event.Wd)
			delete(o.wds, dir)
		default:
			path := filepath.Join(dir, string(name))
			nudged := event.Mask&unix.IN_MODIFY != 0 && now.Sub(o.nudged[path]) < nudgedFor
			if delete(o.nudged, path); !nudged && len(o.at) < maxOwn {
				o.at[path] = now
			}
		}
	}
}
