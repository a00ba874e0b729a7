package hostfs

import (
	"errors"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// beneath makes openat2 refuse a symbolic link as any component (ELOOP) and any mount on the
	// way (EXDEV). Names have no "..", so EXDEV means nothing else.
	beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

	// asEntry opens any entry, including a symbolic link itself, without side effects on it.
	asEntry = unix.O_PATH | unix.O_NOFOLLOW
	// asParent opens a directory for lookups. With O_NOFOLLOW, a link would be ENOTDIR; without it,
	// it is ELOOP.
	asParent = unix.O_PATH | unix.O_DIRECTORY
	// asList opens a directory to read its entries. The kernel checks O_DIRECTORY before it opens
	// anything, so this does not block on a FIFO or touch a device.
	asList = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NONBLOCK
)

// retry repeats a system call that was disturbed, but not forever: the owner of the files may be
// able to disturb it each time.
func retry(call func() error) error {
	const attempts = 64
	var err error
	for range attempts {
		if err = call(); !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
	return err
}

// openBeneath is the only place that opens a file by name. The caller closes the descriptor. The
// error is a bare errno.
func openBeneath(dir int, name string, flags int, mode uint64) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Mode: mode, Resolve: beneath}
	fd := -1
	err := retry(func() (err error) {
		fd, err = unix.Openat2(dir, name, &how)
		return err
	})
	return fd, err
}

// openPath opens name, whatever it is, and describes it. Another file may have the name by now; the
// description is that of the descriptor. The caller closes it. The error is a bare errno.
func openPath(dir int, name string) (int, Info, error) {
	fd, err := openBeneath(dir, name, asEntry, 0)
	if err != nil {
		return -1, Info{}, err
	}
	info, err := inspect(fd, "")
	if err != nil {
		_ = unix.Close(fd)
		return -1, Info{}, err
	}
	info.Name = path.Base(name)
	return fd, info, nil
}

// statAt is openPath for callers that need the description alone.
func statAt(dir int, name string) (Info, error) {
	fd, info, err := openPath(dir, name)
	if err != nil {
		return Info{}, err
	}
	return info, unix.Close(fd)
}

// openParent opens the directory that holds name. The caller closes the descriptor.
func (r *Root) openParent(name string) (dir int, leaf string, err error) {
	parent, leaf := path.Dir(name), path.Base(name)
	dir, err = openBeneath(r.dir, parent, asParent, 0)
	if err != nil {
		return -1, "", r.fail(parent, err)
	}
	return dir, leaf, nil
}

// fail is classify for an errno from resolving name: where it can, it names the component at fault.
func (r *Root) fail(name string, err error) error {
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EXDEV) {
		if found := r.obstacle(name); found != nil {
			return found
		}
	}
	return classify(name, err)
}

// FirstLink returns the first component of a name that is a symbolic link, as a name, and the
// link's text. Both are empty if there is none before the name ends or leads nowhere. It follows
// nothing: whoever does is to resolve the text to another name, and to decide about that one as
// about any. An operation on it then has the file of that very name, or fails.
func (r *Root) FirstLink(name string) (at, text string, err error) {
	if err := checkName(name); err != nil {
		return "", "", err
	}
	err = r.asOwner(func() error {
		switch info, err := statAt(r.dir, name); {
		case err == nil && info.Type == Symlink:
			at, text = name, info.Link
		case errors.Is(err, unix.ELOOP):
			r.walkTo(name, func(part string, info Info, err error) {
				if err == nil && info.Type == Symlink {
					at, text = part, info.Link
				}
			})
		}
		return nil
	})
	return at, text, err
}

// obstacle looks at the components of name one by one, and returns an error about the first that
// does not lead on. It looks after the fact, so it may find a different one than the one that
// stopped the operation, or nil.
func (r *Root) obstacle(name string) (found error) {
	r.walkTo(name, func(part string, info Info, err error) {
		switch {
		case errors.Is(err, unix.EXDEV):
			found = classify(part, err)
		case err != nil:
		case info.Type == Symlink:
			found = notRegular(part, Symlink)
		case part != name:
			found = classify(part, unix.ENOTDIR)
		}
	})
	return found
}

// walkTo looks at the components of name one by one, and calls stop with the first that cannot be
// opened or is no directory, if there is one. It follows no links.
func (r *Root) walkTo(name string, stop func(part string, info Info, err error)) {
	dir := r.dir
	for end := 0; end < len(name); end++ {
		part, _, _ := strings.Cut(name[end:], "/")
		end += len(part)
		fd, info, err := openPath(dir, part)
		if dir != r.dir {
			_ = unix.Close(dir)
		}
		if err == nil && info.Type == Directory {
			dir = fd
			continue
		}
		if err == nil {
			_ = unix.Close(fd)
		}
		stop(name[:end], info, err)
		return
	}
	if dir != r.dir {
		_ = unix.Close(dir)
	}
}
