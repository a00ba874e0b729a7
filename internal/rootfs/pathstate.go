package rootfs

import (
	"errors"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
)

// pathState is what exists at a path that is to be hidden.
type pathState struct {
	exists bool
	file   bool // it is not a directory
	empty  bool // there is nothing in it to hide
	closed bool // only root may put something into it
	id     dockerexec.FileID
}

// stateOf returns what is at a name below a directory's descriptor, as root and without following
// any link. A link is an error: a mount over it would land elsewhere, and the link itself could
// still be replaced.
func (e *emptyDirs) stateOf(fd int, name string) (pathState, error) {
	dir, leaf := fd, name
	if strings.Contains(name, "/") {
		var err error
		dir, leaf, err = openParent(fd, name)
		if err != nil {
			return pathState{}, stateError(err)
		}
		defer unix.Close(dir)
	}
	st, err := identifyAt(dir, leaf, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return pathState{}, stateError(err)
	}
	it := pathState{exists: true, id: st.id}
	switch st.mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return pathState{}, stateError(unix.ELOOP)
	case unix.S_IFDIR:
		it.closed = st.isStandIn()
		it.empty = it.closed && e.have(st) || isEmptyDir(dir, leaf)
		if it.closed && it.empty {
			e.add(st, time.Now())
		}
	default:
		it.file, it.closed = true, st.isStandIn()
		it.empty = st.mode&unix.S_IFMT == unix.S_IFREG && st.size == 0
		// A file may go and come back by another of its names. The mask does not survive that, and
		// the change time shows it.
		it.id.Since = st.changed
	}
	return it, nil
}

// The modes of what is root's and stands in where nothing else is, so that a mask can be mounted on
// it. Calls for which nothing is mounted there see it as it is. It is closed until it is made.
const (
	closed       = 0
	listableDir  = 0o555
	readableFile = 0o444
)

// isStandIn reports whether a mask may have been mounted on this because nothing else was there. A
// directory may have got a bit from the one that it is in.
func (it identity) isStandIn() bool {
	perm := it.mode & 0o777
	switch it.mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return it.uid == 0 && (perm == closed || perm == listableDir)
	case unix.S_IFREG:
		return it.uid == 0 && (perm == closed || perm == readableFile) && it.size == 0
	}
	return false
}

// stateError returns nil for a path that does not exist, including one below something that is not
// a directory, where nothing can be.
func stateError(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
		return nil
	case errors.Is(err, unix.ELOOP):
		return errs.Denied(
			"it is, or is behind, a symbolic link, which cannot be hidden: make it a directory or a file")
	}
	return err
}

// isVacant reports whether nothing is there, or only what a mask is mounted on.
func (s pathState) isVacant() bool { return !s.exists || s.empty && s.closed }

// maskedBy returns the id of what a mask hides there: zero for nothing, and for what is there only
// to mount masks on. A mask that hides a file hides no other that stands in.
func (s pathState) maskedBy(m dockerexec.Mask) dockerexec.FileID {
	if s.isVacant() && (!s.file || m.ID == dockerexec.FileID{}) || (m.Listable && s.empty && !s.file) {
		return dockerexec.FileID{}
	}
	return s.id
}

// emptyDirs are closed directories that were found empty: the many on which masks are mounted need
// not be read again for each call. Only root can put something into one, which changes its change
// time. It is safe for concurrent use.
type emptyDirs struct {
	mu    sync.Mutex
	found map[emptyDir]bool
}

type emptyDir struct {
	id      dockerexec.FileID
	changed int64
}

// maxEmptyDirs bounds how many are remembered, in some 4 MiB.
const maxEmptyDirs = 1 << 16

func (e *emptyDirs) have(it identity) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.found[emptyDir{it.id, it.changed}]
}

// add remembers a directory, unless it has changed so recently that a further change might have the
// same time.
func (e *emptyDirs) add(it identity, now time.Time) {
	if now.Sub(time.Unix(0, it.changed)) < time.Second {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.found == nil || len(e.found) >= maxEmptyDirs {
		e.found = map[emptyDir]bool{}
	}
	e.found[emptyDir{it.id, it.changed}] = true
}

// isEmptyDir reads a directory's first entries. A directory that cannot be read does not count as
// empty.
func isEmptyDir(dir int, name string) bool {
	fd, err := openBeneath(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
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
