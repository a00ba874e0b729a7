package process

import (
	"fmt"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
)

// pollInterval is how often a follower looks by itself, for where the watcher reports nothing: a host has only
// so many watches.
const pollInterval = time.Second

// dirWatcher reports changes in a directory.
type dirWatcher struct {
	changed chan struct{}     // has something after a change; many changes are one
	watcher *fsnotify.Watcher // nil where there is none
}

func watchDir(dir *os.File) *dirWatcher {
	w := &dirWatcher{changed: make(chan struct{}, 1)}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return w
	}
	// By the descriptor: what its name leads to by now is not looked at.
	if err := watcher.Add(fmt.Sprintf("/proc/self/fd/%d", dir.Fd())); err != nil {
		_ = watcher.Close()
		return w
	}
	w.watcher = watcher
	go w.forward()
	return w
}

// forward ends when the watcher is closed.
func (w *dirWatcher) forward() {
	for open := true; open; {
		select {
		case _, open = <-w.watcher.Events:
		case _, open = <-w.watcher.Errors: // of events that were too many, say: something has changed
		}
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}

func (w *dirWatcher) close() {
	if w.watcher != nil {
		_ = w.watcher.Close()
	}
}
