package hostfs

import (
	"errors"
	"path"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
)

// maxLink is the length in bytes of the longest text that a symbolic link can have.
const maxLink = unix.PathMax - 1

// Symlink makes a symbolic link with this text, whatever it leads to, and missing directories. It
// replaces another link; anything else that is there is an error of class ErrConflict.
func (r *Root) Symlink(text, name string) error {
	if err := checkEntry(name); err != nil {
		return err
	}
	if text == "" || len(text) > maxLink {
		return errs.Invalid("the text of the symbolic link %s has %d bytes: it must have 1 to %d",
			quoted(name), len(text), maxLink)
	}
	return r.asOwner(func() error {
		parent, leaf := path.Dir(name), path.Base(name)
		dir, err := r.makeDirs(parent)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		there, err := statAt(dir, leaf)
		switch {
		case errors.Is(err, unix.ENOENT):
			return classify(name, unix.Symlinkat(text, dir, leaf))
		case err != nil:
			return r.fail(name, err)
		case there.closed:
			return keptEmpty(name)
		case there.Type != Symlink:
			return errs.Conflict("%s is there, and is a %s", quoted(name), there.Type)
		}
		temp := temporaryName()
		if err := unix.Symlinkat(text, dir, temp); err != nil {
			return classify(name, err)
		}
		if err := unix.Renameat(dir, temp, dir, leaf); err != nil {
			_ = unix.Unlinkat(dir, temp, 0)
			return classify(name, err)
		}
		return nil
	})
}
