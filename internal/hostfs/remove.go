package hostfs

import (
	"errors"
	"io"
	"path"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Remove removes an entry; of a symbolic link, the link itself. For a directory, even an empty one, the error
// is of class ErrInvalidArgument unless recursive is set; then everything in it is removed too, except what
// is on another file system, at which Remove stops with an error. What was removed by then is gone.
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

// removeAll removes the directory leaf of dir. The owner may move it meanwhile, or put another directory in
// its place: then what is in the opened directory is removed, and nothing of the other one, since rmdir
// removes only an empty directory.
func removeAll(dir int, leaf, name string) error {
	t := tree{left: mostRemoved}
	defer t.close()
	if err := t.enter(dir, leaf, name); err != nil {
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
		err = unix.Unlinkat(at.fd(), entry, 0)
		if errors.Is(err, unix.EISDIR) {
			err = t.enter(at.fd(), entry, path)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return classify(path, err)
		}
	}
	return nil
}

const (
	// mostRemoved bounds a removal to which somebody keeps adding entries.
	mostRemoved = 10_000_000
	// mostPasses is how often a directory that was not empty after a pass is read again.
	mostPasses = 16
)

// removeEmpty removes a directory that was read to its end, or starts to read it again.
func (l *level) removeEmpty(above int, t *tree) error {
	err := unix.Unlinkat(above, l.leaf, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTEMPTY) && l.passes < mostPasses {
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
