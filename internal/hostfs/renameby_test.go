package hostfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/hostfs"
)

// Commit lets somebody else give the new file its name, and does it itself unless that has happened, whatever they have
// done instead.
func TestAFileIsRenamedByAnother(t *testing.T) {
	for name, rename := range map[string]func(dir, temp string) error{
		"done":     func(dir, temp string) error { return os.Rename(filepath.Join(dir, temp), filepath.Join(dir, "file")) },
		"not done": func(string, string) error { return nil },
		"something else": func(dir, temp string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "file"), []byte("theirs"), 0o644), os.Chmod(filepath.Join(dir, "file"), 0o666))
		},
	} {
		for _, there := range []bool{false, true} {
			l := newLab(t)
			r, dir := l.root, l.dir
			path := filepath.Join(dir, "file")
			if there {
				must(t, errors.Join(os.WriteFile(path, []byte("old"), 0o644), os.Chown(path, l.uid, l.gid)))
			}
			w, err := r.Create("file", hostfs.Replace, 0o644)
			if err != nil {
				t.Fatal(err)
			}
			asked := 0
			w.RenameBy(func(temp string, replace bool) {
				if asked++; !replace {
					t.Error("it may not replace")
				}
				if err := rename(dir, temp); err != nil {
					t.Error(err)
				}
			})
			if _, err := w.Write([]byte("new")); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Commit(); err != nil || asked != 1 || w.Replaced() != there {
				t.Errorf("%s: %v, asked %d times, replaced: %t", name, err, asked, w.Replaced())
			}
			if got, err := os.ReadFile(path); string(got) != "new" {
				t.Errorf("%s: %q, %v", name, got, err)
			}
			if entries, _ := os.ReadDir(dir); len(entries) != 1 {
				t.Errorf("%s: %v is left", name, entries)
			}
		}
	}
}

// Who takes the new file away makes the write fail.
func TestANewFileThatIsTakenAway(t *testing.T) {
	l := newLab(t)
	r, dir := l.root, l.dir
	w, err := r.Create("file", hostfs.Exclusive, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	w.RenameBy(func(temp string, replace bool) {
		if err := os.Remove(filepath.Join(dir, temp)); replace || err != nil {
			t.Errorf("%t, %v", replace, err)
		}
	})
	if _, err := w.Commit(); !cerrdefs.IsNotFound(err) {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "file")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
