package hostfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// nest makes directories in one another, each with a file, from the inside of dir.
func nest(t *testing.T, dir string, depth int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	for range depth {
		if err != nil {
			t.Fatal(err)
		}
		if err = unix.Mkdirat(fd, strings.Repeat("d", 200), 0o700); err != nil {
			t.Fatal(err)
		}
		below, opened := unix.Openat(fd, strings.Repeat("d", 200), unix.O_DIRECTORY|unix.O_RDONLY, 0)
		file, made := unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY, 0)
		err = errors.Join(opened, made, unix.Close(file), unix.Close(fd))
		fd = below
	}
	_ = unix.Close(fd)
}

// emptied runs a Trash until nothing of it is left in parent's directories.
func emptied(t *testing.T, trash *Trash, parent string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { trash.Work(ctx) })
	defer func() { cancel(); work.Wait() }()
	waittest.Until(t, "nothing of it is left", func() bool {
		left, err := filepath.Glob(filepath.Join(parent, "*", trashPrefix+"*"))
		return err == nil && len(left) == 0
	})
}

func noFailure(t *testing.T) func(string, error) {
	return func(dir string, err error) { t.Errorf("%s: %v", dir, err) }
}

// However deep a tree is, it goes with few descriptors.
func TestTrashOfDeepTrees(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "user", "processes", "p")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	nest(t, dir, 3_000) // the scenario of e2e has more
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := limit
	low.Cur = 64
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) }()
	trash := NewTrash(noFailure(t))
	if err := trash.Discard(dir, filepath.Join(parent, "user")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is at its place: %v", err)
	}
	emptied(t, trash, parent)
}

// Whatever is in a tree goes, and what a link in it leads to stays.
func TestTrashOfAllKinds(t *testing.T) {
	parent := t.TempDir()
	elsewhere := filepath.Join(t.TempDir(), "kept")
	dir := filepath.Join(parent, "user", "tree")
	err := errors.Join(os.MkdirAll(filepath.Join(dir, "a/b/c"), 0o755), os.WriteFile(elsewhere, []byte("x"), 0o600),
		os.Symlink(elsewhere, filepath.Join(dir, "link")), os.Symlink(filepath.Dir(elsewhere), filepath.Join(dir, "a", "dirlink")),
		unix.Mkfifo(filepath.Join(dir, "a/fifo"), 0), os.Mkdir(filepath.Join(dir, "0"), 0), os.Mkdir(filepath.Join(dir, "1"), 0o777|os.ModeSticky))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1200 { // more than one reading of a directory, with directories to move
		name := filepath.Join(dir, "a/b", fmt.Sprint(i))
		if err := errors.Join(os.Mkdir(name, 0o700), os.WriteFile(filepath.Join(name, "file"), nil, 0o000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(filepath.Join(dir, "a/b"), 0), os.Chmod(dir, 0)); err != nil {
		t.Fatal(err)
	}
	trash := NewTrash(noFailure(t))
	if err := trash.Discard(dir, filepath.Join(parent, "user")); err != nil {
		t.Fatal(err)
	}
	if err := trash.Discard(dir, filepath.Join(parent, "user")); err != nil {
		t.Errorf("what is not there: %v", err)
	}
	emptied(t, trash, parent)
	if text, err := os.ReadFile(elsewhere); err != nil || string(text) != "x" {
		t.Errorf("%q, %v", text, err)
	}
}

// What was left half removed goes after a start, and so does a folder that nothing was moved into yet.
func TestTrashIsResumed(t *testing.T) {
	parent := t.TempDir()
	for _, dir := range []string{"a[b]*", "c"} {
		if err := os.MkdirAll(filepath.Join(parent, dir, trashPrefix+"x", "1", "2"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(parent, "c", trashPrefix+"empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	trash := NewTrash(noFailure(t))
	if err := trash.Resume(parent); err != nil {
		t.Fatal(err)
	}
	emptied(t, trash, parent)
}

// A removal ends when it is told to, and says nothing of what it did not come to.
func TestTrashIsCanceled(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "user", "tree")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	nest(t, dir, 300)
	trash := NewTrash(noFailure(t))
	if err := trash.Discard(dir, filepath.Join(parent, "user")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	trash.Work(ctx)
	emptiedAgain := NewTrash(noFailure(t))
	if err := emptiedAgain.Resume(parent); err != nil {
		t.Fatal(err)
	}
	emptied(t, emptiedAgain, parent)
}
