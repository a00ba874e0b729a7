package rootfs

import (
	"errors"
	"path"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/hostfs"
)

// identity identifies the file at a host path. Its id includes the file's time of birth.
type identity struct {
	id       dockerexec.FileID
	mode     uint32 // with the type
	uid, gid uint32
	size     uint64
	changed  int64 // when the file's content or anything else about it was last changed
}

// identify follows links: the path is the operator's.
func identify(name string) (identity, error) { return identifyAt(unix.AT_FDCWD, name, 0) }

// identifyNoFollow follows no link, so that nobody who may put a link there has a say in what is
// mounted.
func identifyNoFollow(name string) (identity, error) {
	fd, err := openNoFollow(name)
	if err != nil {
		return identity{}, err
	}
	defer unix.Close(fd)
	return identifyOpen(fd)
}

func identifyOpen(fd int) (identity, error) { return identifyAt(fd, "", unix.AT_EMPTY_PATH) }

func identifyAt(dir int, name string, flags int) (identity, error) {
	var st unix.Statx_t
	if err := unix.Statx(dir, name, flags|unix.AT_NO_AUTOMOUNT,
		unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return identity{}, err
	}
	it := identity{
		id:   dockerexec.FileID{Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino},
		mode: uint32(st.Mode), uid: st.Uid, gid: st.Gid, size: st.Size,
		changed: st.Ctime.Sec*1e9 + int64(st.Ctime.Nsec),
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		it.id.Since = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return it, nil
}

// openNoFollow opens a path as a mere handle (O_PATH), without following any link.
func openNoFollow(name string) (int, error) {
	return unix.Openat2(unix.AT_FDCWD, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
}

// OpenBelow opens a directory as a mere handle (O_PATH), without following a link below root.
func OpenBelow(root, name string) (int, error) {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	return openBeneath(fd, name, unix.O_PATH|unix.O_DIRECTORY)
}

// openBeneath resolves a name below a directory's descriptor without following any link. Unlike in
// hostfs, other file systems may be mounted on the way: the operator mounts them.
func openBeneath(fd int, name string, flags uint64) (int, error) {
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

// readLink returns the text of a symbolic link in a directory.
func readLink(dir int, name string) (string, error) {
	text := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, text)
	if err != nil {
		return "", err
	}
	return string(text[:n]), nil
}

// openParent opens the directory that holds a name, and returns the last component.
func openParent(fd int, name string) (dir int, leaf string, err error) {
	dir, err = openBeneath(fd, path.Dir(name), unix.O_PATH|unix.O_DIRECTORY)
	return dir, path.Base(name), err
}

var errExchanged = errors.New("it was replaced just now")

// openRoot opens a root whose path may have components of a tenant's, so none may be a link.
func openRoot(cfg hostfs.Config) (*hostfs.Root, error) {
	meant, err := identifyNoFollow(cfg.Dir)
	if err != nil {
		return nil, err
	}
	return openIdentified(cfg, meant, errExchanged)
}

// openIdentified opens a root, and checks that it is the directory that was meant.
func openIdentified(cfg hostfs.Config, meant identity, exchanged error) (*hostfs.Root, error) {
	root, err := hostfs.Open(cfg)
	if err != nil {
		return nil, err
	}
	info, err := root.Stat(".")
	if err == nil && !meant.id.Same(dockerexec.FileID{Dev: info.Dev, Ino: info.Ino}) {
		err = exchanged
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

// OpenTmp opens the /tmp of a Spec's user, and checks that it is the tmpfs that Docker has mounted:
// where the service does not see Docker's mounts, there is only an ordinary directory.
func (p *Planner) OpenTmp(dir string, spec dockerexec.Spec) (*hostfs.Root, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return nil, err
	}
	if st.Type != unix.TMPFS_MAGIC {
		return nil, errors.New(
			"the service does not see Docker's mount of it; where sandboxd is in a container, bind Docker's volumes into it with propagation rslave")
	}
	meant, err := identifyOpen(fd)
	if err != nil {
		return nil, err
	}
	cfg := hostfs.Config{Dir: dir, UID: spec.UID, GID: spec.GID, Walks: p.walks, User: spec.User}
	return openIdentified(cfg, meant, errors.New("it went away just now; try again"))
}
