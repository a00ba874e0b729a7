package hostfs

import (
	"errors"
	"io"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Stat describes the entry name itself: a symbolic link is a Symlink, wherever it leads. It needs
// no permission on the file, only on the directories that lead to it.
func (r *Root) Stat(name string) (Info, error) {
	if err := checkName(name); err != nil {
		return Info{}, err
	}
	var info Info
	err := r.asOwner(func() (err error) {
		if info, err = statAt(r.dir, name); err != nil {
			return r.fail(name, err)
		}
		return nil
	})
	return info, err
}

const (
	// maxNames bounds how many names of one directory List reads, and sortedAtOnce how many it
	// holds in memory beyond those that it returns.
	maxNames     = 1_000_000
	sortedAtOnce = 16 << 10
	// maxListed bounds the names that List returns, including link targets, in bytes.
	maxListed = 4 << 20
)

// List returns the first entries of a directory, sorted by name, at most the given number and 4 MiB
// of names, and whether there are more. An entry that vanishes meanwhile is left out. In a
// directory with over a million entries, List does not see all of them, and returns the first of
// those that it saw.
func (r *Root) List(name string, limit int) (entries []Info, more bool, err error) {
	if err := checkName(name); err != nil {
		return nil, false, err
	}
	if limit < 1 {
		return nil, false,
			errs.Invalid("cannot list at most %d entries: the limit must be at least 1", limit)
	}
	defer r.walk()()
	err = r.asOwner(func() error {
		fd, err := openBeneath(r.dir, name, asList, 0)
		if err != nil {
			return r.fail(name, err)
		}
		dir := os.NewFile(uintptr(fd), name)
		defer dir.Close()
		var names []string
		if names, more, err = firstNames(dir, limit); err != nil {
			return classify(name, err)
		}
		size := 0
		for _, leaf := range names {
			info, err := inspect(fd, leaf)
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			if err != nil {
				return classify(path.Join(name, leaf), err)
			}
			if size += len(leaf) + len(info.Link); size > maxListed {
				more = true
				break
			}
			entries = append(entries, info)
		}
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	return entries, more, nil
}

// firstNames keeps the smallest names only, so its memory does not grow with the directory.
func firstNames(dir *os.File, limit int) (names []string, more bool, err error) {
	keep := func() {
		slices.Sort(names)
		if len(names) > limit {
			clear(names[limit:])
			names, more = names[:limit], true
		}
	}
	for seen := 0; seen < maxNames; {
		// Names only: ReadDir would, on some file systems, look at the entries by path.
		some, err := dir.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			keep()
			return names, more, nil
		}
		if err != nil {
			return nil, false, err
		}
		seen += len(some)
		if names = append(names, some...); len(names) >= limit+sortedAtOnce {
			keep()
		}
	}
	keep()
	return names, true, nil
}
