package hostfs_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/hostfs"
)

// A file that somebody holds keeps its inode, and gets the new content as a whole, shorter or longer than the old; what is
// not held is replaced. Nothing is left beside it.
func TestAFileThatIsHeldIsWrittenInPlace(t *testing.T) {
	l := newLab(t)
	write := func(content string, held bool) error {
		w, err := l.root.Create("d/notes", hostfs.Replace, 0o644)
		must(t, err)
		defer w.Abort()
		w.Keep(func(hostfs.ID) bool { return held })
		_, err = w.Write([]byte(content))
		must(t, err)
		_, err = w.Commit()
		return err
	}
	inode := func() uint64 {
		var st unix.Stat_t
		must(t, unix.Stat(l.at("d/notes"), &st))
		return st.Ino
	}
	must(t, write("first", true))
	first := inode()
	for _, content := range []string{strings.Repeat("longer ", 100_000), "x", "", "again"} {
		must(t, write(content, true))
		l.holds("d/notes", content)
	}
	if inode() != first {
		t.Error("the file was replaced")
	}
	l.has(l.at("d"), "notes")
	must(t, os.Link(l.at("d/notes"), l.at("copy")))
	must(t, write("new", false))
	l.holds("copy", "again")
	if inode() == first {
		t.Error("the file was not replaced")
	}
}

// Who may not write to a file that is held learns it, and the file is as it was.
func TestAFileThatIsHeldAndCannotBeWritten(t *testing.T) {
	l := newLab(t)
	l.needsRoot()
	l.file("notes", "old")
	must(t, os.Chown(l.at("notes"), 0, 0))
	must(t, os.Chmod(l.at("notes"), 0o644))
	w, err := l.root.Create("notes", hostfs.Replace, 0o644)
	must(t, err)
	defer w.Abort()
	w.Keep(func(hostfs.ID) bool { return true })
	_, err = w.Write([]byte("new"))
	must(t, err)
	if _, err := w.Commit(); !errdefs.IsPermissionDenied(err) {
		t.Error(err)
	}
	l.holds("notes", "old")
}

// The owner can exchange the name of what is being written: what was written arrives all the same, and nobody waits.
func TestAFileThatIsHeldWhileNamesAreExchanged(t *testing.T) {
	l := newLab(t)
	l.file("notes", "old")
	w, err := l.root.Create("notes", hostfs.Replace, 0o644)
	must(t, err)
	defer w.Abort()
	w.Keep(func(hostfs.ID) bool {
		names, err := filepath.Glob(l.at(".daycare-*"))
		if err != nil || len(names) != 1 {
			t.Fatal(names, err)
		}
		must(t, os.Rename(names[0], l.at("away")))
		must(t, unix.Mkfifo(names[0], 0o666))
		return true
	})
	_, err = w.Write([]byte("the new content"))
	must(t, err)
	_, err = w.Commit()
	must(t, err)
	l.holds("notes", "the new content")
	l.has(l.dir, "away", "notes")
}
