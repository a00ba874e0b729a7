package hostfs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
)

// classify turns an errno about name into an error with a class and a readable text. Any other
// error already has both and is returned as it is. An errno that is the machine's fault alone, such
// as EIO, gets no class.
func classify(name string, err error) error {
	errno, ok := errors.AsType[unix.Errno](err)
	if !ok {
		return err
	}
	at := quoted(name)
	switch errno {
	case unix.ENOENT:
		return errs.NotFound("%s does not exist", at)
	case unix.EACCES, unix.EPERM:
		return errs.Denied("%s does not permit this to the owner of the root", at)
	case unix.EROFS:
		return errs.Denied("%s is on a read-only file system", at)
	case unix.ELOOP:
		return errs.Denied("%s is or was reached through a symbolic link", at)
	case unix.EXDEV:
		return errs.Denied("%s is on another file system mounted inside", at)
	case unix.EBUSY:
		return errs.Denied("%s is in use, as a mount point for example", at)
	case unix.EEXIST:
		return errs.Conflict("%s exists already", at)
	case unix.EISDIR:
		return errs.Conflict("%s is a directory", at)
	case unix.ENOTEMPTY:
		return errs.Conflict("%s is a directory that is not empty", at)
	case unix.EAGAIN, unix.ESTALE:
		return errs.Conflict("%s is being changed, or held by a lease", at)
	case unix.ENOTDIR:
		return errs.Invalid("%s is not a directory", at)
	case unix.ENAMETOOLONG:
		return errs.Invalid("%s is too long for a name", at)
	case unix.ENOSPC, unix.EDQUOT, unix.EFBIG:
		return fmt.Errorf("%s: %w", at, errs.ErrNoSpace)
	}
	return fmt.Errorf("%s: %w", at, errno)
}
