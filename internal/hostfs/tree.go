package hostfs

import (
	"errors"
	"io"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
)

const (
	// maxDepth bounds how deep a walk goes, and maxOpen the descriptors that it holds: those of the
	// last directories on the way down. It takes two of them to come back.
	maxDepth, maxOpen = 512, 4
	// maxVisited bounds the entries in the walk of a whole tree, and maxChecked those in the
	// walks that a single read may cause.
	maxVisited = 2_000_000
	maxChecked = 20_000
)

// tree walks directories by descriptor, depth first, with a stack of its own. A directory on the
// stack may be moved meanwhile; the walk goes on in the same directories, or fails if it has closed
// the one above.
type tree struct {
	levels []*level // the last two are open
	// left is how many more entries may be visited.
	left   int
	buffer [8 << 10]byte // of next
}

type level struct {
	fd int // -1 while it is closed
	// id and offset are those of a directory that is closed.
	id     ID
	offset int64
	// path is how the walk came here, for messages and results; leaf is its last component.
	path, leaf string
	names      []string
	// passes counts how often Remove read the directory.
	passes int
}

func (t *tree) top() *level { return t.levels[len(t.levels)-1] }

// enter goes into the directory leaf of parent. The error may be a bare errno.
func (t *tree) enter(parent int, leaf, path string) error {
	if len(t.levels) == maxDepth {
		return errs.Invalid("%s is nested deeper than %d directories", quoted(path), maxDepth)
	}
	fd, err := openBeneath(parent, leaf, asList, 0)
	if err != nil {
		return err
	}
	t.levels = append(t.levels, &level{fd: fd, path: path, leaf: leaf})
	if n := len(t.levels) - maxOpen; n > 0 {
		return t.levels[n-1].suspend()
	}
	return nil
}

// next returns another name in the deepest directory, and "" at its end.
func (t *tree) next() (string, error) {
	at := t.top()
	for len(at.names) == 0 {
		n := 0
		if err := retry(func() (err error) {
			n, err = unix.ReadDirent(at.fd, t.buffer[:])
			return err
		}); err != nil {
			return "", classify(at.path, err)
		}
		if n == 0 {
			return "", nil
		}
		_, _, at.names = unix.ParseDirent(t.buffer[:n], -1, nil)
	}
	if t.left--; t.left < 0 {
		return "", errs.Denied("there are too many entries to look at")
	}
	name := at.names[0]
	at.names = at.names[1:]
	return name, nil
}

// leave returns to the directory above. The one above that is opened again now, from a directory in
// which something was found, because the owner may have closed others to itself.
func (t *tree) leave() error {
	t.top().close()
	t.levels = t.levels[:len(t.levels)-1]
	if n := len(t.levels); n > 1 {
		return t.levels[n-2].resume(t.levels[n-1].fd)
	}
	return nil
}

func (t *tree) close() {
	for _, l := range t.levels {
		l.close()
	}
	t.levels = nil
}

// suspend closes the directory until resume.
func (l *level) suspend() error {
	if l.fd < 0 {
		return nil
	}
	info, err := inspect(l.fd, "")
	if err == nil {
		l.offset, err = unix.Seek(l.fd, 0, io.SeekCurrent)
	}
	l.id = info.ID
	l.close()
	return classify(l.path, err)
}

// resume opens the directory again, if it is closed, from the one that was found in it. It is an
// error if that one is elsewhere now.
func (l *level) resume(below int) error {
	if l.fd >= 0 {
		return nil
	}
	fd, err := openAbove(below)
	if err != nil {
		return classify(l.path, err)
	}
	info, err := inspect(fd, "")
	if err == nil && info.ID != l.id {
		err = errs.Conflict("what is in %s was moved while it was read", quoted(l.path))
	}
	if err == nil {
		_, err = unix.Seek(fd, l.offset, io.SeekStart)
	}
	if err != nil {
		_ = unix.Close(fd)
		return classify(l.path, err)
	}
	l.fd = fd
	return nil
}

func (l *level) close() {
	if l.fd >= 0 {
		_ = unix.Close(l.fd)
	}
	l.fd = -1
}

// scan is visitAll for the regular files that have several names.
func (r *Root) scan(name string, limit int, skip []string,
	visit func(path string, info Info) error) error {
	return r.visitAll(name, limit, skip, func(path string, info Info) error {
		if info.Type != Regular || info.Nlink < 2 {
			return nil
		}
		return visit(path, info)
	})
}

// visitAll calls visit for each entry at or beneath name, except those in skip and what is beneath
// them. It does not follow links or cross mounts. An entry that vanishes, or turns into something
// that cannot be entered, is passed over.
func (r *Root) visitAll(name string, limit int, skip []string,
	visit func(path string, info Info) error) error {
	info, err := statAt(r.dir, name)
	if passedOver(err) {
		return nil
	}
	if err != nil {
		return classify(name, err)
	}
	t := tree{left: limit}
	defer t.close()
	if err := t.visit(r.dir, name, name, info, visit); err != nil {
		return err
	}
	for len(t.levels) > 0 {
		leaf, err := t.next()
		if err != nil {
			return err
		}
		if leaf == "" {
			if err := t.leave(); err != nil {
				return err
			}
			continue
		}
		at := t.top()
		path := path.Join(at.path, leaf)
		if slices.Contains(skip, path) {
			continue
		}
		info, err := inspect(at.fd, leaf)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return classify(path, err)
		}
		if err := t.visit(at.fd, leaf, path, info, visit); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) visit(dir int, leaf, path string, info Info, visit func(string, Info) error) error {
	if err := visit(path, info); err != nil || info.Type != Directory {
		return err
	}
	if err := t.enter(dir, leaf, path); err != nil && !passedOver(err) {
		return classify(path, err)
	}
	return nil
}

// passedOver reports whether err says that there is nothing to walk: the entry is gone, or is
// something that a walk neither follows nor crosses.
func passedOver(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) ||
		errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV)
}
