package process

import (
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pollInterval is how often a follower looks by itself, in case nothing is reported: a host has
// only so many watches.
const pollInterval = time.Second

// logEvents are the events after which there may be something to read.
const logEvents = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM |
	unix.IN_MOVED_TO | unix.IN_ONLYDIR

// dirWatch reports changes in directories to everyone that follows a log. They share one inotify
// instance, because the kernel has few of them (128) for all that runs as root on the host. The
// zero value watches nothing yet.
type dirWatch struct {
	mu        sync.Mutex
	fd        int                              // of events
	events    *os.File                         // inotify; nil while nobody follows
	ended     chan struct{}                    // closed when nobody reads events any more
	followers map[int32]map[chan struct{}]bool // by watch descriptor
}

// add returns a channel that gets a value after changes in dir, one for many, until remove is
// called. If dir cannot be watched, it never gets one.
func (w *dirWatch) add(dir *os.File) (changed <-chan struct{}, remove func()) {
	follower := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.events == nil && !w.open() {
		return follower, func() {}
	}
	// By descriptor, because the directory's name may lead elsewhere by now.
	wd, err := unix.InotifyAddWatch(w.fd, fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), logEvents)
	if err != nil {
		wd = -1 // which no directory has
	}
	if w.followers[int32(wd)] == nil {
		w.followers[int32(wd)] = map[chan struct{}]bool{}
	}
	w.followers[int32(wd)][follower] = true
	return follower, func() { w.remove(int32(wd), follower) }
}

// open opens an instance and reports whether it could; w.mu is held.
func (w *dirWatch) open() bool {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return false
	}
	w.fd, w.events = fd, os.NewFile(uintptr(fd), "inotify")
	w.ended, w.followers = make(chan struct{}), map[int32]map[chan struct{}]bool{}
	go w.read(w.events, w.ended)
	return true
}

// remove removes a follower. After the last one it closes the instance and waits for its reader.
func (w *dirWatch) remove(wd int32, follower chan struct{}) {
	w.mu.Lock()
	delete(w.followers[wd], follower)
	if len(w.followers[wd]) == 0 {
		delete(w.followers, wd)
		_, _ = unix.InotifyRmWatch(w.fd, uint32(wd)) // it may be gone with its directory
	}
	if len(w.followers) > 0 {
		w.mu.Unlock()
		return
	}
	events, ended := w.events, w.ended
	w.events = nil
	w.mu.Unlock()
	_ = events.Close()
	<-ended
}

func (w *dirWatch) read(events *os.File, ended chan<- struct{}) {
	defer close(ended)
	buffer := make([]byte, 16<<10)
	for {
		n, err := events.Read(buffer)
		if err != nil {
			return
		}
		w.wake(buffer[:n])
	}
}

// wake wakes the followers of the events' directories, or all followers if events were lost.
func (w *dirWatch) wake(events []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(events) >= unix.SizeofInotifyEvent {
		event := (*unix.InotifyEvent)(unsafe.Pointer(&events[0]))
		events = events[unix.SizeofInotifyEvent+int(event.Len):]
		wakeAll(w.followers[event.Wd])
		if event.Mask&unix.IN_Q_OVERFLOW != 0 {
			for _, followers := range w.followers {
				wakeAll(followers)
			}
		}
	}
}

func wakeAll(followers map[chan struct{}]bool) {
	for follower := range followers {
		select {
		case follower <- struct{}{}:
		default:
		}
	}
}
