package hostfs

import (
	"errors"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// newDirectory is the mode of a new directory.
const newDirectory = 0o755

// Mkdir makes a directory with mode 0755. With parents, it also makes missing parents, and an existing
// directory is not an error.
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
		return classify(name, widen(made))
	})
}

// makeDirs makes the missing directories of name, each through the descriptor of its parent, and returns the
// last one's descriptor. The caller closes it.
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
	if err := widen(dir); err != nil {
		_ = unix.Close(dir)
		return -1, err
	}
	return dir, nil
}

// widen gives a new directory the bits that the service's umask removed. By then, the owner may have put
// another directory there; but the owner, under whose identity this happens, could widen that one as well.
// fchmod does not take an O_PATH descriptor, so this goes through /proc.
func widen(dir int) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return err
	}
	mode := st.Mode & 0o7777
	if mode&newDirectory == newDirectory {
		return nil
	}
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(dir), mode|newDirectory)
}
