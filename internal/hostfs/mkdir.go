package hostfs

import (
	"errors"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
)

// newDirectory is the mode of a new directory.
const newDirectory = 0o755

// Mkdir makes a directory with mode 0755. With parents, it also makes missing parents, and an
// existing directory is not an error.
func (r *Root) Mkdir(name string, parents bool) error {
	if err := checkName(name); err != nil {
		return err
	}
	return r.asOwner(func() error {
		if parents {
			dir, err := r.makeDirs(name)
			if err != nil {
				return err
			}
			return unix.Close(dir)
		}
		if name == "." {
			return classify(name, unix.EEXIST)
		}
		dir, leaf, err := r.openParent(name)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		if err := unix.Mkdirat(dir, leaf, newDirectory); err != nil {
			return r.fail(name, err)
		}
		made, err := openBeneath(dir, leaf, asParent, 0)
		if err != nil {
			return r.fail(name, err)
		}
		defer unix.Close(made)
		return classify(name, widen(made, newDirectory))
	})
}

// MakeDir makes a directory with these permission bits, and missing ones above it with 0755. A
// directory that is there keeps its own, and made is false; anything else there is an error, as for
// Create.
func (r *Root) MakeDir(name string, mode fs.FileMode) (made bool, err error) {
	if err := checkName(name); err != nil {
		return false, err
	}
	err = r.asOwner(func() error {
		dir, err := r.makeDirs(path.Dir(name))
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		if name == "." {
			return nil
		}
		leaf := path.Base(name)
		switch err := unix.Mkdirat(dir, leaf, uint32(mode.Perm())); {
		case errors.Is(err, unix.EEXIST):
			return r.isDir(dir, leaf, name)
		case err != nil:
			return r.fail(name, err)
		}
		made = true
		fd, err := openBeneath(dir, leaf, asParent, 0)
		if err != nil {
			return r.fail(name, err)
		}
		defer unix.Close(fd)
		return classify(name, widen(fd, uint32(mode.Perm())))
	})
	return made, err
}

// isDir returns an error unless the entry is a directory that may be written to.
func (r *Root) isDir(dir int, leaf, name string) error {
	there, err := statAt(dir, leaf)
	switch {
	case err != nil:
		return r.fail(name, err)
	case there.closed:
		return keptEmpty(name)
	case there.Type == Symlink:
		return notRegular(name, Symlink)
	case there.Type != Directory:
		return errs.Conflict("%s is there, and is a %s", quoted(name), there.Type)
	}
	return nil
}

// makeDirs makes the missing directories of name, each through the descriptor of its parent, and
// returns the last one's descriptor. The caller closes it.
func (r *Root) makeDirs(name string) (int, error) {
	dir, err := openBeneath(r.dir, name, asParent, 0)
	if err == nil {
		return dir, nil
	}
	if !errors.Is(err, unix.ENOENT) {
		return -1, r.fail(name, err)
	}
	dir = r.dir
	for part := range strings.SplitSeq(name, "/") {
		next, err := makeDir(dir, part)
		if dir != r.dir {
			_ = unix.Close(dir)
		}
		if err != nil {
			return -1, r.fail(name, err)
		}
		dir = next
	}
	return dir, nil
}

// makeDir opens the directory leaf of parent, and makes it if it is missing.
func makeDir(parent int, leaf string) (int, error) {
	dir, err := openBeneath(parent, leaf, asParent, 0)
	if !errors.Is(err, unix.ENOENT) {
		return dir, err
	}
	made := unix.Mkdirat(parent, leaf, newDirectory)
	if made != nil && !errors.Is(made, unix.EEXIST) {
		return -1, made
	}
	dir, err = openBeneath(parent, leaf, asParent, 0)
	if err != nil || made != nil {
		return dir, err
	}
	if err := widen(dir, newDirectory); err != nil {
		_ = unix.Close(dir)
		return -1, err
	}
	return dir, nil
}

// widen gives a new directory the bits that the service's umask removed. By then, the owner may
// have put another directory there; but the owner, under whose identity this happens, could widen
// that one as well. fchmod does not take an O_PATH descriptor, so this goes through /proc.
func widen(dir int, to uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return err
	}
	mode := st.Mode & 0o7777
	if mode&to == to {
		return nil
	}
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(dir), mode|to)
}
