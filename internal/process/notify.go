package process

import (
	"fmt"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
)

// pollInterval is how often a follower looks by itself, for where changes do not tell: a host has only
// so many watches.
const pollInterval = time.Second

// changes tells of what happens in a directory.
type changes struct {
	come    chan struct{}     // has something after a change; many changes are one
	watcher *fsnotify.Watcher // nil where there is none
}

func watchDir(dir *os.File) *changes {
	c := &changes{come: make(chan struct{}, 1)}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return c
	}
	// By the descriptor: what its name leads to by now is not looked at.
	if err := watcher.Add(fmt.Sprintf("/proc/self/fd/%d", dir.Fd())); err != nil {
		_ = watcher.Close()
		return c
	}
	c.watcher = watcher
	go c.forward()
	return c
}

// forward ends when the watcher is closed.
func (c *changes) forward() {
	for open := true; open; {
		select {
		case _, open = <-c.watcher.Events:
		case _, open = <-c.watcher.Errors: // of events that were too many, say: something has changed
		}
		select {
		case c.come <- struct{}{}:
		default:
		}
	}
}

func (c *changes) close() {
	if c.watcher != nil {
		_ = c.watcher.Close()
	}
}
