package hostfs

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// A directory that goes and comes back before anybody has read of it is watched once, and its names count once: else a
// Watcher would come to its bound although there are few files.
func TestWatchedNamesCountOnce(t *testing.T) {
	dir := t.TempDir()
	root, err := Open(Config{Dir: dir, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Walks: NewWalks(), User: "lab"})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	w, err := root.Watch(".", true)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	inner := filepath.Join(dir, "inner")
	for range 3 {
		err := errors.Join(os.Mkdir(inner, 0o755), os.Remove(inner), os.Mkdir(inner, 0o755))
		for _, name := range []string{"a", "b", "c"} {
			err = errors.Join(err, os.WriteFile(filepath.Join(inner, name), nil, 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
		for w.of("inner") < 0 {
			if _, err := w.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if w.known != 4 {
			t.Errorf("of inner, a, b and c it knows %d", w.known)
		}
		if err := os.RemoveAll(inner); err != nil {
			t.Fatal(err)
		}
		for len(w.dirs) > 1 || w.known > 0 && w.dirs[w.of("")].names["inner"] {
			if _, err := w.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if w.known != 0 {
			t.Errorf("when all is gone it knows %d", w.known)
		}
	}
}

// of is the watch descriptor of a directory; -1 for none.
func (w *Watcher) of(rel string) int32 {
	for wd, d := range w.dirs {
		if d.rel == rel {
			return wd
		}
	}
	return -1
}

// A tenant makes directories as deep as it likes and moves them in and out of a watched one, each time to be read.
func TestAWatcherLeavesNothingOpen(t *testing.T) {
	dir := t.TempDir()
	const depth = 200
	if err := os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", depth)), 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := Open(Config{Dir: dir, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Walks: NewWalks(), User: "lab"})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	w, err := root.Watch(".", true)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	least, most, seen := 1<<30, 0, 0
	err = w.add("d", func(Event) {
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Error(err)
		}
		least, most, seen = min(least, len(open)), max(most, len(open)), seen+1
	})
	if err != nil || seen != depth-1 {
		t.Fatalf("it was told of %d directories, not of %d: %v", seen, depth-1, err)
	}
	if most > least+10 {
		t.Errorf("%d descriptors were open at the top, and %d further down", least, most)
	}
}

func TestWatchesAreWalks(t *testing.T) {
	for name, watch := range map[string]func(t *testing.T, root *Root, dir string) (waits func()){
		"begun": func(t *testing.T, root *Root, _ string) func() {
			return func() {
				w, err := root.Watch(".", true)
				if err != nil {
					t.Error(err)
					return
				}
				w.Close()
			}
		},
		"a directory appears": func(t *testing.T, root *Root, dir string) func() {
			w, err := root.Watch(".", true)
			if err == nil {
				err = os.Mkdir(filepath.Join(dir, "d"), 0o755)
			}
			if err != nil {
				t.Fatal(err)
			}
			return func() {
				defer w.Close()
				if _, err := w.Next(context.Background()); err != nil {
					t.Error(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				walks := NewWalks()
				root, err := Open(Config{Dir: dir, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), User: "u", Walks: walks})
				if err != nil {
					t.Fatal(err)
				}
				defer root.Close()
				waits := watch(t, root, dir)
				var ends []func()
				for range walksAtOnce {
					ends = append(ends, walks.begin("u"))
				}
				done := false
				go func() {
					waits()
					done = true
				}()
				synctest.Wait()
				if done {
					t.Error("it did not wait for the user's walks")
				}
				for _, end := range ends {
					end()
				}
				synctest.Wait()
				if !done {
					t.Error("it waits although the walks have ended")
				}
			})
		})
	}
}

// A directory is watched whole or not at all: of one with more names than are known, those in it beyond would be missed.
func TestADirectoryWithTooManyNamesIsNotWatched(t *testing.T) {
	dir := t.TempDir()
	for i := range maxKnown + 1 {
		if err := unix.Mknod(filepath.Join(dir, strconv.Itoa(i)), unix.S_IFREG|0o644, 0); err != nil {
			t.Fatal(err)
		}
	}
	root, err := Open(Config{Dir: dir, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Walks: NewWalks(), User: "lab"})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if w, err := root.Watch(".", false); err == nil {
		w.Close()
		t.Errorf("a directory of %d files is watched", maxKnown+1)
	} else if !cerrdefs.IsResourceExhausted(err) {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(dir, "0")); err != nil {
		t.Fatal(err)
	}
	w, err := root.Watch(".", false)
	if err != nil {
		t.Fatalf("one of %d is not: %v", maxKnown, err)
	}
	w.Close()
}

// Who watches most of a directory does without what it leaves, and without the deepest where there are too many.
func TestWatchMost(t *testing.T) {
	dir := t.TempDir()
	root, err := Open(Config{Dir: dir, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Walks: NewWalks(), User: "lab"})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, name := range []string{"left/in", "deep/" + strings.Repeat("d/", 1100), "near"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w, err := root.WatchMost(".", maxWatched, func(leaf string) bool { return leaf == "left" })
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if w.of("near") < 0 || w.of("deep/d/d") < 0 || w.of("left") >= 0 || len(w.dirs) != maxWatched {
		t.Errorf("%d directories: near %d, left %d", len(w.dirs), w.of("near"), w.of("left"))
	}
	for _, name := range []string{"left/in/unheard", "near/file"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "new", "left"), 0o755), os.Chmod(filepath.Join(dir, "near"), 0o700)); err != nil {
		t.Fatal(err)
	}
	got := map[Event]bool{}
	for want := (Event{"new", Created}); !got[want]; {
		events, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			got[e] = true
		}
	}
	want := map[Event]bool{{"near/file", Created}: true, {"near/file", Written}: true, {"new", Created}: true}
	if !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
}
