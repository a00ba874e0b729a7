package hostfs

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// ErrNoSpace is the class of errors about a full disk, a quota that is used up and a file that would
// grow too large. What was there before is still there.
var ErrNoSpace = errors.New("the disk or quota is full")

// classed gives an error a class without adding its text.
type classed struct{ class error }

func (classed) Error() string   { return "" }
func (c classed) Unwrap() error { return c.class }

func invalid(format string, args ...any) error {
	return inClass(errdefs.ErrInvalidArgument, format, args)
}

func denied(format string, args ...any) error {
	return inClass(errdefs.ErrPermissionDenied, format, args)
}

func conflict(format string, args ...any) error {
	return inClass(errdefs.ErrConflict, format, args)
}

func inClass(class error, format string, args []any) error {
	return fmt.Errorf("%w%s", classed{class}, fmt.Sprintf(format, args...))
}

// classify turns an errno about name into an error with a class and a text for people. Any other error
// has that already and is returned as it is; an errno that is nobody's fault but the machine's, such as
// EIO, gets no class.
func classify(name string, err error) error {
	errno, ok := errors.AsType[unix.Errno](err)
	if !ok {
		return err
	}
	at := shown(name)
	switch errno {
	case unix.ENOENT:
		return inClass(errdefs.ErrNotFound, "%s does not exist", []any{at})
	case unix.EACCES, unix.EPERM:
		return denied("%s does not permit this to the owner of the root", at)
	case unix.EROFS:
		return denied("%s is on a read-only file system", at)
	case unix.ELOOP:
		return denied("%s is or was reached through a symbolic link", at)
	case unix.EXDEV:
		return denied("%s is on another file system mounted inside", at)
	case unix.EBUSY:
		return denied("%s is in use, as a mount point for example", at)
	case unix.EEXIST:
		return conflict("%s exists already", at)
	case unix.EISDIR:
		return conflict("%s is a directory", at)
	case unix.ENOTEMPTY:
		return conflict("%s is a directory that is not empty", at)
	case unix.EAGAIN, unix.ESTALE:
		return conflict("%s is being changed, or held by a lease", at)
	case unix.ENOTDIR:
		return invalid("%s is not a directory", at)
	case unix.ENAMETOOLONG:
		return invalid("%s is too long a name", at)
	case unix.ENOSPC, unix.EDQUOT, unix.EFBIG:
		return fmt.Errorf("%s: %w", at, ErrNoSpace)
	}
	return fmt.Errorf("%s: %w", at, errno)
}
