package hostfs

import (
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
)

// OpenFile opens a regular file for reading and describes it as it was then: its owner may change
// it meanwhile, so a reader may get more or fewer bytes than its size. OpenFile does not block: a
// FIFO, socket or device is refused before it is opened. The error is of class ErrNotFound,
// ErrInvalidArgument (the name, or what it names), ErrPermissionDenied (a symbolic link, another
// file system, another name of a denied file, no permission for the owner) or ErrConflict (the
// owner holds a lease). The caller closes the file.
func (r *Root) OpenFile(name string) (file *os.File, info Info, err error) {
	if err := checkName(name); err != nil {
		return nil, Info{}, err
	}
	err = r.asOwner(func() error {
		entry, found, err := openPath(r.dir, name)
		if err != nil {
			return r.fail(name, err)
		}
		defer unix.Close(entry)
		fd, now, err := r.reopen(entry, found, name, unix.O_RDONLY)
		if err != nil {
			return err
		}
		file, info = os.NewFile(uintptr(fd), path.Base(name)), now
		return nil
	})
	return file, info, err
}

// reopen opens the file behind an openPath descriptor for input or output, through that descriptor:
// no name is involved that could lead elsewhere. O_NONBLOCK is needed because a file's owner can
// delay an open with a lease. The caller closes the new descriptor.
func (r *Root) reopen(entry int, info Info, name string, flags int) (int, Info, error) {
	if info.Type != Regular {
		return -1, Info{}, notRegular(name, info.Type)
	}
	if err := r.refuseLink(info, name); err != nil {
		return -1, Info{}, err
	}
	return reopenFile(entry, info, name, flags)
}

// reopenFile is reopen for a regular file of which the caller knows that it is no other name of a
// denied one.
func reopenFile(entry int, info Info, name string, flags int) (int, Info, error) {
	const quiet = unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	fd := -1
	err := retry(func() (err error) {
		fd, err = unix.Open("/proc/self/fd/"+strconv.Itoa(entry), flags|quiet, 0)
		return err
	})
	if err != nil {
		return -1, Info{}, classify(name, err)
	}
	now, err := inspect(fd, "")
	switch {
	case err != nil:
		err = classify(name, err)
	case now.ID != info.ID || now.Type != Regular:
		err = errs.Conflict("%s changed while it was opened", quoted(name))
	default:
		now.Name = info.Name
		return fd, now, nil
	}
	_ = unix.Close(fd)
	return -1, Info{}, err
}
