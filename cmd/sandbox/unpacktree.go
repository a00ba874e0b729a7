package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/daycare-run/sandbox/internal/archive"
)

// treeWriter writes a hostile archive's entries below a directory here. Each directory is entered
// from the one above by its descriptor, and only if it is a directory and no symbolic link. So
// nothing is written elsewhere, whatever links the archive brings or are there already.
type treeWriter struct {
	dir string // made with the first entry

	way     []level // the directories from dir to that of the last entry
	entries int64
	bytes   int64
}

// level is an open directory.
type level struct {
	name string // its last component
	root *os.Root
}

func (t *treeWriter) close() {
	for _, l := range t.way {
		_ = l.root.Close()
	}
	t.way = nil
}

// told says what has been copied; "" if that is nothing.
func (t *treeWriter) told() string {
	if t.entries == 0 {
		return ""
	}
	entries := "1 entry"
	if t.entries > 1 {
		entries = fmt.Sprintf("%d entries", t.entries)
	}
	return fmt.Sprintf("%s has %s (%s); %s", printable(t.dir), entries, bytesText(t.bytes),
		staysWhole)
}

// unpack writes all entries.
func (t *treeWriter) unpack(ctx context.Context, from *archive.Reader) error {
	buffer := make([]byte, copyBuffer)
	for {
		e, err := from.Next()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := t.entry(e, from, buffer); err != nil {
			return fmt.Errorf("cannot write %s: %w", printable(path.Join(t.dir, e.Name)),
				cause(err))
		}
		t.entries++
		t.bytes += e.Size
	}
}

// ownerChanges is set for each directory: what follows is put into it.
const ownerChanges = 0o700

func (t *treeWriter) entry(e archive.Entry, from io.Reader, buffer []byte) error {
	if len(t.way) == 0 {
		if err := t.begin(e); err != nil {
			return err
		}
	}
	parts := levels(e.Name)
	if len(parts) == 0 {
		return nil
	}
	leaf := parts[len(parts)-1]
	dir, err := t.enter(parts[:len(parts)-1])
	if err != nil {
		return err
	}
	switch e.Kind {
	case archive.Directory:
		return makeDir(dir, leaf, e.Mode|ownerChanges)
	case archive.Link:
		return makeLink(dir, leaf, e.Text)
	default:
		return makeFile(dir, leaf, e, from, buffer)
	}
}

// begin opens the directory, and makes it if it is missing. Its own name is the caller's to choose,
// so a link there is followed.
func (t *treeWriter) begin(e archive.Entry) error {
	mode := fs.FileMode(0o777)
	if e.Name == "." {
		mode = e.Mode | ownerChanges
	}
	if err := os.Mkdir(t.dir, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	root, err := os.OpenRoot(t.dir)
	if err != nil {
		return err
	}
	t.way = []level{{root: root}}
	return nil
}

// enter returns the directory with these components. Those of the last one that are the same stay
// open.
func (t *treeWriter) enter(parts []string) (*os.Root, error) {
	same := 0
	for same < len(parts) && same+1 < len(t.way) && t.way[same+1].name == parts[same] {
		same++
	}
	for _, l := range t.way[same+1:] {
		_ = l.root.Close()
	}
	t.way = slices.Clip(t.way[:same+1])
	for _, part := range parts[same:] {
		above := t.way[len(t.way)-1].root
		if err := makeDir(above, part, 0o777); err != nil {
			return nil, err
		}
		info, err := above.Lstat(part)
		if err != nil {
			return nil, err
		}
		below, err := openSame(above, part, info)
		if err != nil {
			return nil, err
		}
		t.way = append(t.way, level{part, below})
	}
	return t.way[len(t.way)-1].root, nil
}

// makeDir makes a directory. One that is there keeps its mode; anything else there is an error.
func makeDir(dir *os.Root, leaf string, mode fs.FileMode) error {
	err := dir.Mkdir(leaf, mode)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := dir.Lstat(leaf)
	if err != nil {
		return err
	}
	return wants(info, leaf, fs.ModeDir, "directory")
}

// wants returns an error unless there is something of this type.
func wants(info fs.FileInfo, leaf string, kind fs.FileMode, name string) error {
	switch is := info.Mode().Type(); is {
	case kind:
		return nil
	case fs.ModeSymlink:
		return fmt.Errorf("%s is a symbolic link here, which is not followed", printable(leaf))
	case fs.ModeDir:
		return fmt.Errorf("%s is a directory here, not a %s", printable(leaf), name)
	default:
		return fmt.Errorf("%s is there, and no %s", printable(leaf), name)
	}
}

// makeLink makes a symbolic link, in place of another.
func makeLink(dir *os.Root, leaf, text string) error {
	err := dir.Symlink(text, leaf)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := dir.Lstat(leaf)
	if err != nil {
		return err
	}
	if err := wants(info, leaf, fs.ModeSymlink, "symbolic link"); err != nil {
		return err
	}
	part := partName()
	if err := dir.Symlink(text, part); err != nil {
		return err
	}
	return putInPlace(dir, part, leaf)
}

// makeFile makes a file, or replaces one, which keeps its mode. At any time the name has the old
// file or the whole new one.
func makeFile(dir *os.Root, leaf string, e archive.Entry, from io.Reader,
	buffer []byte) (err error) {
	mode := e.Mode | ownerReads
	old, err := dir.Lstat(leaf)
	if err == nil {
		if err := wants(old, leaf, 0, "file"); err != nil {
			return err
		}
		mode = old.Mode().Perm()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	part := partName()
	file, err := dir.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{file}, from, buffer)
	if err == nil && n != e.Size {
		err = fmt.Errorf("%d bytes of %d have come", n, e.Size)
	}
	if err == nil && old != nil {
		err = file.Chmod(mode) // without the umask
	}
	if err = errors.Join(err, file.Close()); err != nil {
		_ = dir.Remove(part)
		return err
	}
	return putInPlace(dir, part, leaf)
}

// partName is the name of what is not complete yet.
func partName() string { return ".sandbox-cp-" + rand.Text() }

// putInPlace gives a new entry its name. A link that has the name by now is replaced, and not
// followed.
func putInPlace(dir *os.Root, part, leaf string) error {
	err := dir.Rename(part, leaf)
	if err != nil {
		_ = dir.Remove(part)
	}
	return err
}
