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

const (
	// maxDepth bounds the descriptors that a walk holds: one for each directory on the way down.
	maxDepth = 512
	// maxVisited bounds the entries in the walk of a whole tree, and maxChecked those in the
	// walks that a single read may cause.
	maxVisited = 2_000_000
	maxChecked = 20_000
)

// tree walks directories by descriptor, depth first, with a stack of its own. A directory on the
// stack may be moved meanwhile; the walk goes on in the same directories.
type tree struct {
	levels []*level
	// left is how many more entries may be visited.
	left int
}

type level struct {
	dir *os.File
	// path is how the walk came here, for messages and results; leaf is its last component.
	path, leaf string
	names      []string
	// passes counts how often Remove read the directory.
	passes int
}

func (l *level) fd() int { return int(l.dir.Fd()) }

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
	t.levels = append(t.levels, &level{dir: os.NewFile(uintptr(fd), leaf), path: path, leaf: leaf})
	return nil
}

// next returns another name in the deepest directory, and "" at its end.
func (t *tree) next() (string, error) {
	at := t.top()
	if len(at.names) == 0 {
		names, err := at.dir.Readdirnames(512)
		if errors.Is(err, io.EOF) {
			return "", nil
		}
		if err != nil {
			return "", classify(at.path, err)
		}
		at.names = names
	}
	if t.left--; t.left < 0 {
		return "", errs.Denied("there are too many entries to look at")
	}
	name := at.names[0]
	at.names = at.names[1:]
	return name, nil
}

// leave returns to the directory above.
func (t *tree) leave() {
	_ = t.top().dir.Close()
	t.levels = t.levels[:len(t.levels)-1]
}

func (t *tree) close() {
	for len(t.levels) > 0 {
		t.leave()
	}
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
			t.leave()
			continue
		}
		at := t.top()
		path := path.Join(at.path, leaf)
		if slices.Contains(skip, path) {
			continue
		}
		info, err := inspect(at.fd(), leaf)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return classify(path, err)
		}
		if err := t.visit(at.fd(), leaf, path, info, visit); err != nil {
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
