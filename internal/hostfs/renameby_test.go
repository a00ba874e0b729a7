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
		"done": func(dir, temp string) error { return os.Rename(filepath.Join(dir, temp), filepath.Join(dir, "file")) },
		"done twice": func(dir, temp string) error {
			_ = os.Remove(filepath.Join(dir, "file"))
			return os.Link(filepath.Join(dir, temp), filepath.Join(dir, "file"))
		},
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
			w.RenameBy(func(temp string) bool {
				asked++
				must(t, rename(dir, temp))
				return true
			})
			if _, err := w.Write([]byte("new")); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Commit(); err != nil || asked != 1 || w.Replaced() != (there || name == "something else") {
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

// What happens while somebody else is asked is looked at again: the file comes to no other place, and over nothing that it
// may not replace.
func TestMeanwhileOthersChangeThings(t *testing.T) {
	for name, tt := range map[string]struct {
		meanwhile func(l *lab, dir, temp string) error
		is        func(error) bool
	}{
		"the directory is moved": {func(l *lab, dir, temp string) error {
			return errors.Join(os.Rename(dir, dir+"-old"), os.Mkdir(dir, 0o755), os.Chown(dir, l.uid, l.gid))
		}, cerrdefs.IsConflict},
		"the directory is moved, and the file renamed": {func(l *lab, dir, temp string) error {
			return errors.Join(os.Rename(filepath.Join(dir, temp), filepath.Join(dir, "file")), os.Rename(dir, dir+"-old"), os.Mkdir(dir, 0o755), os.Chown(dir, l.uid, l.gid))
		}, cerrdefs.IsConflict},
		"the new file is taken away": {func(_ *lab, dir, temp string) error { return os.Remove(filepath.Join(dir, temp)) }, cerrdefs.IsConflict},
		"a directory has the name":   {func(_ *lab, dir, _ string) error { return os.Mkdir(filepath.Join(dir, "file"), 0o755) }, cerrdefs.IsInvalidArgument},
	} {
		l := newLab(t)
		dir := filepath.Join(l.dir, "dir")
		must(t, errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, l.uid, l.gid)))
		w, err := l.root.Create("dir/file", hostfs.Replace, 0o644)
		must(t, err)
		w.RenameBy(func(temp string) bool {
			must(t, tt.meanwhile(l, dir, temp))
			return true
		})
		if _, err := w.Commit(); !tt.is(err) {
			t.Errorf("%s: %v", name, err)
		}
		if info, err := os.Lstat(filepath.Join(dir, "file")); err == nil && !info.IsDir() {
			t.Errorf("%s: it is there", name)
		}
	}
}

// A file that has to stay the one that it is, and one that must be new, are nobody else's to rename.
func TestFilesThatNobodyElseRenames(t *testing.T) {
	l := newLab(t)
	for _, how := range []hostfs.CreateMode{hostfs.Exclusive, hostfs.Replace} {
		w, err := l.root.Create("file", how, 0o644)
		must(t, err)
		w.Keep(func(hostfs.ID) bool { return true })
		w.RenameBy(func(string) bool { t.Errorf("%v: somebody is asked", how); return true })
		_, err = w.Commit()
		must(t, err)
	}
}
