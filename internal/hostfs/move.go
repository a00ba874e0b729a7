package hostfs

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Move renames a file or directory within the root. Without replace, the error is of class
// ErrConflict when to exists; with replace, a file may replace a file, and a directory an empty
// directory. Move neither moves nor replaces a symbolic link, and does not move a denied file,
// whether by one of its names or in a directory. The directory of to must exist.
func (r *Root) Move(from, to string, replace bool) error {
	if err := errors.Join(checkEntry(from), checkEntry(to)); err != nil {
		return err
	}
	if within(to, from) {
		return errs.Invalid("%s cannot be moved into itself", quoted(from))
	}
	for _, name := range r.denied {
		if within(name, from) || within(from, name) {
			return errs.Denied("%s would give %s another name", quoted(from), quoted(name))
		}
	}
	return r.asOwner(func() error { return r.move(from, to, replace) })
}

func (r *Root) move(from, to string, replace bool) error {
	fromDir, fromLeaf, err := r.openParent(from)
	if err != nil {
		return err
	}
	defer unix.Close(fromDir)
	toDir, toLeaf, err := r.openParent(to)
	if err != nil {
		return err
	}
	defer unix.Close(toDir)

	info, err := statAt(fromDir, fromLeaf)
	if err != nil {
		return r.fail(from, err)
	}
	if info.Type == Symlink {
		return notRegular(from, Symlink)
	}
	if err := r.refuseLink(info, from); err != nil {
		return err
	}
	switch there, err := statAt(toDir, toLeaf); {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		return r.fail(to, err)
	case !replace:
		return classify(to, unix.EEXIST)
	case there.Type == Symlink:
		return notRegular(to, Symlink)
	}
	if replace {
		err = unix.Renameat(fromDir, fromLeaf, toDir, toLeaf)
	} else {
		err = renameNew(fromDir, fromLeaf, toDir, toLeaf)
	}
	if errors.Is(err, unix.ENOENT) {
		return classify(from, err)
	}
	return classify(to, err)
}

// renameNew renames to a name that must be free. A file system without RENAME_NOREPLACE answers
// EINVAL; there, a file gets the new name before it loses the old one, and a directory cannot be
// moved.
func renameNew(fromDir int, from string, toDir int, to string) error {
	err := unix.Renameat2(fromDir, from, toDir, to, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	if err := unix.Linkat(fromDir, from, toDir, to, 0); err != nil {
		return err
	}
	return unix.Unlinkat(fromDir, from, 0)
}
