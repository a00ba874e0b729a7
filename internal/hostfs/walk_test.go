package hostfs_test

import (
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/hostfs"
)

// walked returns what a walk finds below a directory: files with their content, links with their text.
func walked(t *testing.T, l *lab, name string) (map[string]string, error) {
	t.Helper()
	w, _, err := l.root.Walk(name, 1000)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	found := map[string]string{}
	for {
		name, info, err := w.Next()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return found, err
		}
		found[name] = string(info.Type)
		switch info.Type {
		case hostfs.Directory:
			if err := w.Enter(); err != nil && !errdefs.IsNotFound(err) {
				found[name] = "closed"
			}
		case hostfs.Symlink:
			found[name] = "-> " + info.Link
		case hostfs.Regular:
			file, _, err := w.Open()
			if err != nil {
				found[name] = "unread"
				if errors.Is(err, hostfs.ErrOtherName) {
					found[name] = "denied"
				}
				continue
			}
			content, err := io.ReadAll(file)
			must(t, errors.Join(err, file.Close()))
			found[name] = string(content)
		}
	}
}

func TestWalk(t *testing.T) {
	l := newLab(t, "secret")
	l.needsRoot()
	l.file("d/a", "a")
	l.file("d/deep/er/b", "b")
	l.file("d/closed/c", "c")
	l.file("d/mine", "not readable")
	l.file("secret/key", "the key")
	must(t, errors.Join(
		os.Symlink(l.outside, l.dir+"/d/out"), os.Symlink("a", l.dir+"/d/link"), unix.Mkfifo(l.dir+"/d/fifo", 0o666),
		os.Link(l.dir+"/secret/key", l.dir+"/d/innocent"), os.Link(l.dir+"/d/a", l.dir+"/d/twice"),
		os.Chmod(l.dir+"/d/closed", 0), os.Chmod(l.dir+"/d/mine", 0)))
	found, err := walked(t, l, "d")
	must(t, err)
	want := map[string]string{
		"a": "a", "twice": "a", "deep": "directory", "deep/er": "directory", "deep/er/b": "b", "closed": "closed", "mine": "unread",
		"out": "-> " + l.outside, "link": "-> a", "fifo": "fifo", "innocent": "denied",
	}
	if !maps.Equal(found, want) {
		t.Errorf("%v, want %v", found, want)
	}
	for name, is := range map[string]func(error) bool{"d/a": errdefs.IsInvalidArgument, "d/out": errdefs.IsPermissionDenied, "none": errdefs.IsNotFound, "../x": errdefs.IsInvalidArgument} {
		if _, err := walked(t, l, name); !is(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w, _, err := l.root.Walk("d", 3)
	must(t, err)
	defer w.Close()
	for range 3 {
		_, _, err := w.Next()
		must(t, err)
	}
	if _, _, err := w.Next(); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a fourth of three entries: %v", err)
	}
}

// Whoever exchanges a directory or a file for a link, after Next has returned it, does not lead a walk out.
func TestWalkOfExchangedEntries(t *testing.T) {
	for _, name := range []string{"dir", "file"} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.file("d/dir/f", "ours")
			l.file("d/file", "ours")
			must(t, os.WriteFile(l.outside+"/f", []byte(canary), 0o666))
			w, _, err := l.root.Walk("d", 10)
			must(t, err)
			defer w.Close()
			for is := ""; is != name; {
				is, _, err = w.Next()
				must(t, err)
			}
			at := l.dir + "/d/" + name
			must(t, errors.Join(os.Rename(at, l.dir+"/old"), os.Symlink(map[string]string{"dir": l.outside, "file": l.outside + "/f"}[name], at)))
			if name == "dir" {
				err = w.Enter()
			} else {
				_, _, err = w.Open()
			}
			if !errdefs.IsNotFound(err) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// Slow readers of one user hold a bounded number of descriptors.
func TestWalksThatAreOpen(t *testing.T) {
	l := newLab(t)
	var open []*hostfs.Walk
	for {
		w, _, err := l.root.Walk(".", 10)
		if err != nil {
			if !errdefs.IsResourceExhausted(err) || len(open) != 8 {
				t.Errorf("%d are open: %v", len(open), err)
			}
			break
		}
		open = append(open, w)
	}
	open[0].Close()
	open[0].Close() // once is enough
	for _, is := range []func(error) bool{func(err error) bool { return err == nil }, errdefs.IsResourceExhausted} {
		w, _, err := l.root.Walk(".", 10)
		if !is(err) {
			t.Error(err)
		}
		if err == nil {
			open = append(open, w)
		}
	}
	for _, w := range open {
		w.Close()
	}
}

func TestMakeDir(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	l := newLab(t)
	l.file("file", "x")
	must(t, os.Symlink(l.outside, l.dir+"/link"))
	for _, tt := range []struct {
		name string
		mode os.FileMode
		made bool
		is   func(error) bool
	}{
		{"a", 0o755, true, nil},
		{"a", 0o700, false, nil},
		{"a/b/c", 0o750, true, nil},
		{".", 0o700, false, nil},
		{"file", 0o755, false, errdefs.IsConflict},
		{"file/x", 0o755, false, errdefs.IsInvalidArgument},
		{"link", 0o755, false, errdefs.IsPermissionDenied},
		{"link/x", 0o755, false, errdefs.IsPermissionDenied},
		{"../x", 0o755, false, errdefs.IsInvalidArgument},
	} {
		made, err := l.root.MakeDir(tt.name, tt.mode)
		if made != tt.made || tt.is == nil && err != nil || tt.is != nil && !tt.is(err) {
			t.Errorf("%s: %t, %v", tt.name, made, err)
		}
	}
	for name, mode := range map[string]os.FileMode{"a": 0o755, "a/b": 0o755, "a/b/c": 0o750} {
		if info, err := os.Stat(l.dir + "/" + name); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	if names, err := os.ReadDir(l.outside); err != nil || len(names) > 0 {
		t.Errorf("outside there is %v, %v", names, err)
	}
}

func TestSymlink(t *testing.T) {
	l := newLab(t)
	l.file("file", "x")
	l.file("dir/x", "x")
	must(t, os.Symlink(l.outside, l.dir+"/link"))
	for _, tt := range []struct {
		name, text string
		is         func(error) bool
	}{
		{"new", "../../etc", nil},
		{"new", "/etc/passwd", nil}, // in place of the other
		{"made/new", "x", nil},
		{"file", "x", errdefs.IsConflict},
		{"dir", "x", errdefs.IsConflict},
		{"link/x", "x", errdefs.IsPermissionDenied},
		{"empty", "", errdefs.IsInvalidArgument},
		{"long", strings.Repeat("x", 4096), errdefs.IsInvalidArgument},
		{"../x", "x", errdefs.IsInvalidArgument},
	} {
		err := l.root.Symlink(tt.text, tt.name)
		if tt.is == nil && err != nil || tt.is != nil && !tt.is(err) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if got, _ := os.Readlink(l.dir + "/" + tt.name); tt.is == nil && got != tt.text {
			t.Errorf("%s says %q", tt.name, got)
		}
	}
	if names := slices.Concat(below(t, l.dir), below(t, l.outside)); slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, ".daycare-") }) {
		t.Errorf("left behind: %v", names)
	}
}

func below(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
