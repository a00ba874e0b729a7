package hostfs

import (
	"os"
	"path"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
)

// File is a regular file that is open for reading. Its owner may change it meanwhile, so more or fewer
// bytes than Size may come. Whoever opened it closes it.
type File struct {
	file *os.File
	info Info
}

// OpenFile opens a regular file for reading. It does not block: a FIFO, socket or device is refused
// before it is opened. The error is of class ErrNotFound, ErrInvalidArgument (the name, or that which
// has it), ErrPermissionDenied (a symbolic link, another file system, another name of a denied file,
// no permission for the owner) or ErrConflict (the owner holds a lease).
func (r *Root) OpenFile(name string) (*File, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	var file *File
	err := r.asOwner(func() error {
		entry, info, err := openPath(r.dir, name)
		if err != nil {
			return r.fail(name, err)
		}
		defer unix.Close(entry)
		fd, info, err := r.reopen(entry, info, name, unix.O_RDONLY)
		if err != nil {
			return err
		}
		file = &File{file: os.NewFile(uintptr(fd), path.Base(name)), info: info}
		return nil
	})
	return file, err
}

// reopen opens the file behind a descriptor of openPath for input or output, by the descriptor: there is no
// name on this way that could lead elsewhere. O_NONBLOCK is against a lease, with which the owner of a
// file delays those who open it. The caller closes the new descriptor.
func (r *Root) reopen(entry int, info Info, name string, flags int) (int, Info, error) {
	if info.Type != Regular {
		return -1, Info{}, notRegular(name, info.Type)
	}
	if err := r.refuseLink(info, name); err != nil {
		return -1, Info{}, err
	}
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

func (f *File) Read(p []byte) (int, error)               { return f.file.Read(p) }
func (f *File) ReadAt(p []byte, at int64) (int, error)   { return f.file.ReadAt(p, at) }
func (f *File) Seek(at int64, whence int) (int64, error) { return f.file.Seek(at, whence) }

// SyscallConn is for a copy that the kernel does by itself. It reads on from where Read has come to.
func (f *File) SyscallConn() (syscall.RawConn, error) { return f.file.SyscallConn() }

// Close closes the file. Reads after it fail with os.ErrClosed.
func (f *File) Close() error { return f.file.Close() }

// Size is the number of bytes that the file had when it was opened.
func (f *File) Size() int64 { return f.info.Size }

// ModTime is when the file, as it was opened, had last been changed.
func (f *File) ModTime() time.Time { return f.info.ModTime }
