package process

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// However many follow, the kernel has one inotify instance less, and none when all have gone.
func TestFollowersShareAnInstance(t *testing.T) {
	const each = 100
	before := instances(t)
	var w dirWatch
	var removes []func()
	busy, still := openedDir(t), openedDir(t)
	var changed, others []<-chan struct{}
	for range each {
		follower, remove := w.add(busy)
		changed, removes = append(changed, follower), append(removes, remove)
		follower, remove = w.add(still)
		others, removes = append(others, follower), append(removes, remove)
	}
	if n := instances(t) - before; n != 1 {
		t.Errorf("%d followers have %d inotify instances", 2*each, n)
	}
	appendTo(t, busy.Name(), "a\n")
	for i, follower := range changed {
		select {
		case <-follower:
		case <-time.After(10 * time.Second):
			t.Fatalf("follower %d is not woken", i)
		}
	}
	for i, follower := range others {
		if len(follower) > 0 {
			t.Errorf("follower %d of another directory is woken", i)
		}
	}
	for _, remove := range removes {
		remove()
	}
	if n := instances(t) - before; n != 0 {
		t.Errorf("%d inotify instances are left", n)
	}
}

// What cannot be watched wakes nobody, and others that follow go on.
func TestWatchOfNoDirectory(t *testing.T) {
	var w dirWatch
	none, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close()
	_, removeNone := w.add(none)
	dir := openedDir(t)
	changed, remove := w.add(dir)
	removeNone()
	appendTo(t, dir.Name(), "a\n")
	select {
	case <-changed:
	case <-time.After(10 * time.Second):
		t.Error("it is not woken")
	}
	remove()
}

func openedDir(t *testing.T) *os.File {
	t.Helper()
	dir, err := os.Open(logOf(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	return dir
}

// instances counts those of inotify that this program has.
func instances(t *testing.T) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if what, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && what == "anon_inode:inotify" {
			n++
		}
	}
	return n
}
