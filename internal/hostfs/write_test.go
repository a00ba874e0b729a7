package hostfs_test

import (
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/hostfs"
)

func TestWrite(t *testing.T) {
	tests := []struct {
		name, old string // "" is no file
		how       hostfs.CreateMode
		want      string
	}{
		{"replace", "old", hostfs.Replace, "new"},
		{"replace nothing", "", hostfs.Replace, "new"},
		{"append", "old", hostfs.Append, "oldnew"},
		{"append to nothing", "", hostfs.Append, "new"},
		{"exclusive", "", hostfs.Exclusive, "new"},
		{"bytes that are not UTF-8 \xff", "old", hostfs.Replace, "new"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			if tt.old != "" {
				l.file(tt.name, tt.old)
			}
			w, err := l.root.Create(tt.name, tt.how, 0o644)
			must(t, err)
			for _, part := range []string{"n", "", "ew"} {
				n, err := io.WriteString(w, part)
				if n != len(part) || err != nil {
					t.Errorf("Write: %d, %v", n, err)
				}
			}
			if n, err := w.Commit(); n != 3 || err != nil {
				t.Errorf("Commit: %d, %v", n, err)
			}
			w.Abort()
			if _, err := w.Commit(); !errors.Is(err, os.ErrClosed) {
				t.Errorf("second Commit: %v", err)
			}
			if _, err := w.Write([]byte("x")); !errors.Is(err, os.ErrClosed) {
				t.Errorf("Write after Commit: %v", err)
			}
			l.holds(tt.name, tt.want)
			l.has(l.dir, tt.name)
		})
	}
}

func TestAbortLeavesWhatWas(t *testing.T) {
	for _, how := range []hostfs.CreateMode{hostfs.Replace, hostfs.Append} {
		l := newLab(t)
		l.file("f", "old")
		w, err := l.root.Create("f", how, 0o644)
		must(t, err)
		_, err = io.WriteString(w, "new")
		must(t, err)
		w.Abort()
		w.Abort()
		l.holds("f", "old")
		l.has(l.dir, "f")
	}
}

func TestAbortKeepsWhatOthersAppended(t *testing.T) {
	l := newLab(t)
	l.file("f", "old")
	w, err := l.root.Create("f", hostfs.Append, 0o644)
	must(t, err)
	_, err = io.WriteString(w, "mine")
	must(t, err)
	must(t, l.write("f", hostfs.Append, "theirs"))
	w.Abort()
	l.holds("f", "oldminetheirs")
}

func TestExclusiveRefusesBeforeAByteIsWritten(t *testing.T) {
	l := newLab(t)
	l.file("f", "old")
	l.mkdir("d")
	l.symlink("f", "link")
	for _, name := range []string{"f", "d", "link"} {
		_, err := l.root.Create(name, hostfs.Exclusive, 0o644)
		l.refused(err, errdefs.ErrConflict, "exists already")
	}
	w, err := l.root.Create("late", hostfs.Exclusive, 0o644)
	must(t, err)
	l.file("late", "theirs")
	_, err = w.Commit()
	l.refused(err, errdefs.ErrConflict, `"late" exists already`)
	l.holds("late", "theirs")
	l.has(l.dir, "d", "f", "late", "link")
}

func TestOfManyExclusiveCreatorsOneWins(t *testing.T) {
	l := newLab(t)
	var won, lost atomic.Int32
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			switch err := l.write("f", hostfs.Exclusive, "content"); {
			case err == nil:
				won.Add(1)
			case errdefs.IsConflict(err):
				lost.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 || lost.Load() != 49 {
		t.Errorf("%d won, %d lost", won.Load(), lost.Load())
	}
	l.holds("f", "content")
	l.has(l.dir, "f")
}

func TestReadersSeeOldOrNew(t *testing.T) {
	l := newLab(t)
	content := func(c string) string { return strings.Repeat(c, 1<<17) }
	l.file("f", content("a"))
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				got, err := l.read("f")
				if err != nil || len(got) != 1<<17 || strings.Trim(got, got[:1]) != "" {
					t.Errorf("a reader saw %d bytes, %v", len(got), err)
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for i := range 100 {
		must(t, l.write("f", hostfs.Replace, content(string(rune('a'+i%26)))))
	}
	close(stop)
	readers.Wait()
}

// TestOwnerAndMode: the umask of the service, which is the process's, does not count.
func TestOwnerAndMode(t *testing.T) {
	before := syscall.Umask(0o077)
	defer syscall.Umask(before)
	l := newLab(t)
	l.file("tool", "x")
	must(t, os.Chmod(l.at("tool"), 0o755|os.ModeSetuid|os.ModeSetgid|os.ModeSticky))
	must(t, l.write("tool", hostfs.Replace, "y"))
	must(t, l.write("a/b/new", hostfs.Replace, "y"))
	must(t, l.write("c/exclusive", hostfs.Exclusive, "y"))
	must(t, l.write("d/append", hostfs.Append, "y"))
	must(t, l.root.Mkdir("e/f", true))
	must(t, l.root.Mkdir("g", false))
	tests := []struct {
		name string
		mode uint32
	}{
		{"tool", unix.S_IFREG | 0o755},
		{"a", unix.S_IFDIR | 0o755},
		{"a/b", unix.S_IFDIR | 0o755},
		{"a/b/new", unix.S_IFREG | 0o644},
		{"c/exclusive", unix.S_IFREG | 0o644},
		{"d/append", unix.S_IFREG | 0o644},
		{"e/f", unix.S_IFDIR | 0o755},
		{"g", unix.S_IFDIR | 0o755},
	}
	for _, tt := range tests {
		var st unix.Stat_t
		must(t, unix.Lstat(l.at(tt.name), &st))
		if int(st.Uid) != l.uid || int(st.Gid) != l.gid || st.Mode != tt.mode {
			t.Errorf("%s is of %d:%d with mode %o, want %d:%d and %o", tt.name, st.Uid, st.Gid, st.Mode, l.uid, l.gid, tt.mode)
		}
	}
}

func TestCommitRefusesWhenTheDirectoryMoved(t *testing.T) {
	moves := []struct {
		name  string
		do    func(l *lab) error
		class error
	}{
		{"another in its place", func(l *lab) error {
			return errors.Join(os.Rename(l.at("d"), l.at("e")), os.Mkdir(l.at("d"), 0o755))
		}, errdefs.ErrConflict},
		{"a link in its place", func(l *lab) error {
			return errors.Join(os.Rename(l.at("d"), l.at("e")), os.Symlink("e", l.at("d")))
		}, errdefs.ErrPermissionDenied},
		{"out of the root", func(l *lab) error { return os.Rename(l.at("d"), l.at("../outside/d")) }, errdefs.ErrNotFound},
	}
	for _, tt := range moves {
		l := newLab(t)
		l.mkdir("d")
		w, err := l.root.Create("d/f", hostfs.Replace, 0o644)
		must(t, err)
		must(t, tt.do(l))
		_, err = w.Commit()
		l.refused(err, tt.class, `"d`)
		for _, dir := range []string{"d", "e", "../outside/d"} {
			if entries, err := os.ReadDir(l.at(dir)); err == nil && len(entries) > 0 {
				t.Errorf("%s: %s has %v", tt.name, dir, entries)
			}
		}
	}
}

func TestCreateRefuses(t *testing.T) {
	l := newLab(t)
	_, err := l.root.Create(".", hostfs.Replace, 0o644)
	l.refused(err, errdefs.ErrInvalidArgument, "root directory")
	_, err = l.root.Create("f", 0, 0o644)
	l.refused(err, errdefs.ErrInvalidArgument, "unknown mode 0")
	l.file("f", "")
	_, err = l.root.Create("f/g/h", hostfs.Replace, 0o644)
	l.refused(err, errdefs.ErrInvalidArgument, `"f" is not a directory`)
	l.has(l.dir, "f")
}
