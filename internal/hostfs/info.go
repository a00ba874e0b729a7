package hostfs

import (
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Type is the kind of a directory entry.
type Type string

// The types. Mount is a listed entry on which another file system is mounted: it has a name and
// nothing else, and no operation enters it.
const (
	Regular   Type = "file"
	Directory Type = "directory"
	Symlink   Type = "symlink"
	FIFO      Type = "fifo"
	Socket    Type = "socket"
	Device    Type = "device"
	Mount     Type = "mount"
)

// ID identifies a file, whatever its names are.
type ID struct{ Dev, Ino uint64 }

// Info describes a file as it was at one moment.
type Info struct {
	// Name is the last component of the name; "." for the root.
	Name string
	Type Type
	// Size is in bytes, and meaningful only for a regular file.
	Size int64
	// Blocks is the space that the file takes on disk, in bytes.
	Blocks int64
	// Mode has only the nine permission bits.
	Mode    fs.FileMode
	ModTime time.Time
	ID
	// Nlink counts the names of a regular file.
	Nlink uint32
	// Link is the target of a symbolic link as written, wherever it leads.
	Link string
	// closed says that it is a directory of root's that nobody else may enter, as those on which
	// masks are mounted.
	closed bool
}

// inspect describes the file behind the descriptor dir if name is empty, and otherwise the entry
// name in dir, without following it.
func inspect(dir int, name string) (Info, error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	var st unix.Statx_t
	if err := retry(func() error {
		return unix.Statx(dir, name, flags, unix.STATX_BASIC_STATS, &st)
	}); err != nil {
		return Info{}, err
	}
	if name != "" && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return Info{Name: name, Type: Mount}, nil
	}
	var link string
	if typeOf(st.Mode) == Symlink {
		text := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, name, text)
		if err != nil && err != unix.EINVAL { // it is another file by now
			return Info{}, err
		}
		link = string(text[:max(n, 0)])
	}
	return Info{
		Link:    link,
		Name:    name,
		Type:    typeOf(st.Mode),
		Size:    int64(st.Size),
		Blocks:  int64(st.Blocks) * 512,
		Mode:    fs.FileMode(st.Mode & 0o777),
		ModTime: time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec)),
		ID:      ID{Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino},
		Nlink:   st.Nlink,
		closed: typeOf(st.Mode) == Directory && st.Uid == 0 &&
			(st.Mode&0o777 == 0 || st.Mode&0o777 == 0o555),
	}, nil
}

func typeOf(mode uint16) Type {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return Regular
	case unix.S_IFDIR:
		return Directory
	case unix.S_IFLNK:
		return Symlink
	case unix.S_IFIFO:
		return FIFO
	case unix.S_IFSOCK:
		return Socket
	}
	return Device
}

// notRegular returns why name cannot be read or written.
func notRegular(name string, is Type) error {
	at := quoted(name)
	switch is {
	case Symlink:
		return errs.Denied("%s is a symbolic link", at)
	case Directory:
		return errs.Invalid("%s is a directory", at)
	case FIFO:
		return errs.Invalid("%s is a FIFO, not a regular file", at)
	}
	return errs.Invalid("%s is a %s, not a regular file", at, is)
}
