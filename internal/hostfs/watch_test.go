package hostfs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A directory that goes and comes back before anybody has read of it is watched once, and its names count once: else a
// Watcher would come to its bound although there are few files.
func TestWhatAWatcherKnowsIsCountedOnce(t *testing.T) {
	dir := t.TempDir()
	root, err := Open(Config{Dir: dir, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())})
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
