package sandbox

import (
	"errors"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
)

// found is what stands at a path that is to be hidden.
type found struct {
	// exists says that there is something, file that it is no directory.
	exists, file bool
	// empty says that there is nothing in it to hide.
	empty bool
	id    dockerexec.FileID
	// closed says that it is a directory that nobody but root may enter: what is in it stays hidden.
	closed bool
}

// beneath resolves a name below a directory's descriptor without following any link.
func beneath(fd int, name string, flags uint64) (int, error) {
	for {
		got, err := unix.Openat2(fd, name, &unix.OpenHow{
			Flags:   flags | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return got, err
		}
	}
}

// parentOf opens the directory that holds a name, and returns the last component.
func parentOf(fd int, name string) (dir int, leaf string, err error) {
	dir, err = beneath(fd, path.Dir(name), unix.O_PATH|unix.O_DIRECTORY)
	return dir, path.Base(name), err
}

// lookAt finds what is at a name below a directory's descriptor, as root and without following any link. A
// link is an error: what is put over one lands elsewhere, and the link itself stays free to be replaced.
func lookAt(fd int, name string) (found, error) {
	dir, leaf := fd, name
	if strings.Contains(name, "/") {
		var err error
		dir, leaf, err = parentOf(fd, name)
		if err != nil {
			return found{}, lookError(err)
		}
		defer unix.Close(dir)
	}
	st, err := identifyAt(dir, leaf, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return found{}, lookError(err)
	}
	it := found{exists: true, id: st.id}
	switch st.mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return found{}, lookError(unix.ELOOP)
	case unix.S_IFDIR:
		it.empty = emptyDirectory(dir, leaf)
		it.closed = st.uid == 0 && st.mode&0o777 == 0
	default:
		it.file = true
		it.empty = st.mode&unix.S_IFMT == unix.S_IFREG && st.size == 0
		// A file may go and come back by another of its names, which the mask does not survive; that
		// changes it.
		it.id.Since = st.changed
	}
	return it, nil
}

// hiddenBy is what a mask is put on: nothing where there is nothing, or only what masks stand on, which
// comes and goes with them.
func (f found) hiddenBy(m dockerexec.Mask) dockerexec.FileID {
	if f.isVacant() || (m.Listable && f.empty && !f.file) {
		return dockerexec.FileID{}
	}
	return f.id
}

// isVacant says that there is nothing, or only what a mask stands on.
func (f found) isVacant() bool { return !f.exists || (f.empty && !f.file && f.closed) }

// lookError is nil for a path that is not there, also when what should be a directory is none: nothing
// can be below it.
func lookError(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
		return nil
	case errors.Is(err, unix.ELOOP):
		return errs.Denied("it is, or is behind, a symbolic link, which cannot be hidden: make it a directory or a file")
	}
	return err
}

// emptyDirectory reads a directory's first entries; what cannot be read is not empty.
func emptyDirectory(dir int, name string) bool {
	fd, err := beneath(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	buffer := make([]byte, 1024)
	for {
		n, err := unix.ReadDirent(fd, buffer)
		if err != nil {
			return false
		}
		if n == 0 {
			return true
		}
		if _, _, names := unix.ParseDirent(buffer[:n], -1, nil); len(names) > 0 {
			return false
		}
	}
}

// identified is which file a path of the host is. Its id has the time of its birth.
type identified struct {
	id       dockerexec.FileID
	mode     uint32 // with the type
	uid, gid uint32
	size     uint64
	changed  int64 // when its content or anything else about it has changed
}

// identify follows links: the path is the operator's.
func identify(name string) (identified, error) { return identifyAt(unix.AT_FDCWD, name, 0) }

// identifyExactly follows no link, so that nobody who may put one there has a say in what is mounted.
func identifyExactly(name string) (identified, error) {
	fd, err := openExactly(name)
	if err != nil {
		return identified{}, err
	}
	defer unix.Close(fd)
	return identifyOpen(fd)
}

func openExactly(name string) (int, error) {
	return unix.Openat2(unix.AT_FDCWD, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
}

func identifyOpen(fd int) (identified, error) { return identifyAt(fd, "", unix.AT_EMPTY_PATH) }

func identifyAt(dir int, name string, flags int) (identified, error) {
	var st unix.Statx_t
	if err := unix.Statx(dir, name, flags|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return identified{}, err
	}
	it := identified{
		id:   dockerexec.FileID{Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino},
		mode: uint32(st.Mode), uid: st.Uid, gid: st.Gid, size: st.Size,
		changed: st.Ctime.Sec*1e9 + int64(st.Ctime.Nsec),
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		it.id.Since = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return it, nil
}
