package hostfs

import (
	"errors"
	"io"
	"path"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Remove removes an entry; of a symbolic link, the link itself. For a directory, even an empty one,
// the error is of class ErrInvalidArgument unless recursive is set; then everything in it is
// removed too, except what is on another file system, at which Remove stops with an error. What was
// removed by then is gone.
func (r *Root) Remove(name string, recursive bool) error {
	if err := checkEntry(name); err != nil {
		return err
	}
	if recursive {
		defer r.walk()()
	}
	return r.asOwner(func() error {
		dir, leaf, err := r.openParent(name)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		info, err := statAt(dir, leaf)
		switch {
		case err != nil:
			return r.fail(name, err)
		case info.Type != Directory:
			return classify(name, unix.Unlinkat(dir, leaf, 0))
		case !recursive:
			return errs.Invalid("%s is a directory; set recursive", quoted(name))
		}
		return removeAll(dir, leaf, name)
	})
}

// removeAll removes the directory leaf of dir. The owner may move it meanwhile, or put another
// directory in its place: then what is in the opened directory is removed, and nothing of the other
// one, since rmdir removes only an empty directory.
func removeAll(dir int, leaf, name string) error {
	t := tree{left: maxRemoved}
	defer t.close()
	if err := t.remove(dir, leaf, name); err != nil {
		return classify(name, err)
	}
	for len(t.levels) > 0 {
		at := t.top()
		entry, err := t.next()
		if err != nil {
			return err
		}
		if entry == "" {
			above := dir
			if len(t.levels) > 1 {
				above = t.levels[len(t.levels)-2].fd()
			}
			if err := at.removeEmpty(above, &t); err != nil {
				return err
			}
			continue
		}
		path := path.Join(at.path, entry)
		if err := t.remove(at.fd(), entry, path); err != nil && !errors.Is(err, unix.ENOENT) {
			return classify(path, err)
		}
	}
	return nil
}

// remove removes an entry, or enters it if it is a directory that holds something. The error may be
// a bare errno.
func (t *tree) remove(parent int, leaf, path string) error {
	err := unlink(parent, leaf)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return t.enter(parent, leaf, path)
	}
	return err
}

// unlink removes an entry that is not a directory, or is an empty one. That takes no permission on
// the directory itself, which may be a mount point of root's for a mask. The error is ENOTEMPTY or
// EEXIST for one that holds something.
func unlink(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) { // POSIX has EPERM for a directory
		if as := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); !errors.Is(as, unix.ENOTDIR) {
			return as
		}
	}
	return err
}

const (
	// maxRemoved bounds a removal to which somebody keeps adding entries.
	maxRemoved = 10_000_000
	// maxPasses is how often a directory that was not empty after a pass is read again.
	maxPasses = 16
)

// removeEmpty removes a directory that was read to its end, or starts to read it again.
func (l *level) removeEmpty(above int, t *tree) error {
	err := unix.Unlinkat(above, l.leaf, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTEMPTY) && l.passes < maxPasses {
		l.passes++
		_, err := l.dir.Seek(0, io.SeekStart)
		return err
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return classify(l.path, err)
	}
	t.leave()
	return nil
}
