package process

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pollInterval is how often a follower looks by itself, for where changes do not tell: a host has only
// so many watches.
const pollInterval = time.Second

// changes tells of what happens in a directory.
type changes struct {
	come chan struct{} // has something after a change; many changes are one
	file *os.File      // inotify; nil where there is none
	done chan struct{}
}

func watchDir(dir *os.File) *changes {
	c := &changes{come: make(chan struct{}, 1), done: make(chan struct{})}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return c
	}
	const what = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_ONLYDIR
	if _, err := unix.InotifyAddWatch(fd, fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), what); err != nil {
		_ = unix.Close(fd)
		return c
	}
	c.file = os.NewFile(uintptr(fd), "inotify")
	go c.forward()
	return c
}

func (c *changes) forward() {
	defer close(c.done)
	events := make([]byte, 4<<10)
	for {
		if _, err := c.file.Read(events); err != nil {
			return
		}
		select {
		case c.come <- struct{}{}:
		default:
		}
	}
}

func (c *changes) close() {
	if c.file != nil {
		_ = c.file.Close() // ends the read
		<-c.done
	}
}
