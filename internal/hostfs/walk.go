package hostfs

import (
	"errors"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Walk reads a tree entry by entry, at its caller's pace: between two calls it holds nothing but
// the descriptors of the directories on the way down. Only one goroutine at a time may use it.
// Whoever began it closes it, before the root.
type Walk struct {
	root   *Root
	tree   tree
	denied map[ID]bool
	end    func() // releases what the user may hold
	parent *level // of the entry that Next returned last
	leaf   string
	info   Info
}

// ErrOtherName is the error of Walk.Open for another name of a denied file.
var ErrOtherName = errs.Denied("it is another name of a denied file")

// Walk begins to read the directory name, with at most so many entries, and describes it. Errors
// are as for List, and of class ErrResourceExhausted if the user has too many walks open.
func (r *Root) Walk(name string, limit int) (*Walk, Info, error) {
	if err := checkName(name); err != nil {
		return nil, Info{}, err
	}
	end, err := r.walks.hold(r.user)
	if err != nil {
		return nil, Info{}, err
	}
	links, err := r.DeniedLinks()
	if err != nil {
		end()
		return nil, Info{}, err
	}
	w := &Walk{root: r, end: end, tree: tree{left: limit}, denied: map[ID]bool{}}
	for _, id := range links {
		w.denied[id] = true
	}
	var info Info
	err = r.asOwner(func() error {
		if err := w.tree.enter(r.dir, name, name); err != nil {
			return r.fail(name, err)
		}
		info, err = inspect(w.tree.top().fd(), "")
		return classify(name, err)
	})
	if err != nil {
		w.Close()
		return nil, Info{}, err
	}
	w.tree.top().path = "."
	return w, info, nil
}

// Next returns another entry, with its name below the directory at which the walk began; io.EOF at
// the end. An entry that vanishes meanwhile is left out. The entries of a directory come after it,
// if Enter is called for it.
func (w *Walk) Next() (name string, info Info, err error) {
	err = w.root.asOwner(func() error {
		for len(w.tree.levels) > 0 {
			leaf, err := w.tree.next()
			if err != nil {
				return err
			}
			if leaf == "" {
				w.tree.leave()
				continue
			}
			at := w.tree.top()
			name = path.Join(at.path, leaf)
			if info, err = inspect(at.fd(), leaf); err == nil {
				w.parent, w.leaf, w.info = at, leaf, info
				return nil
			}
			if !errors.Is(err, unix.ENOENT) {
				return classify(name, err)
			}
		}
		return io.EOF
	})
	if err != nil {
		return "", Info{}, err
	}
	return name, info, nil
}

// Enter goes into the directory that Next has returned. The error is of class ErrPermissionDenied
// if its owner may not read it, and ErrNotFound if it is no such directory any more.
func (w *Walk) Enter() error {
	name := path.Join(w.parent.path, w.leaf)
	return w.root.asOwner(func() error {
		err := w.tree.enter(w.parent.fd(), w.leaf, name)
		if passedOver(err) {
			err = unix.ENOENT
		}
		return classify(name, err)
	})
}

// Open opens the regular file that Next has returned, as OpenFile does. The caller closes it.
func (w *Walk) Open() (file *os.File, info Info, err error) {
	name := path.Join(w.parent.path, w.leaf)
	err = w.root.asOwner(func() error {
		entry, found, err := openPath(w.parent.fd(), w.leaf)
		if passedOver(err) {
			err = unix.ENOENT
		}
		if err != nil {
			return classify(name, err)
		}
		defer unix.Close(entry)
		if found.Type != Regular {
			return classify(name, unix.ENOENT) // another one has its name
		}
		if found.Nlink > 1 && w.denied[found.ID] {
			return ErrOtherName
		}
		fd, now, err := reopenFile(entry, found, name, unix.O_RDONLY)
		if err != nil {
			return err
		}
		file, info = os.NewFile(uintptr(fd), w.leaf), now
		return nil
	})
	return file, info, err
}

// Kept reports whether the directory that Next has returned is there for a container's mask alone,
// as those that Create refuses.
func (w *Walk) Kept() bool { return w.info.closed }

// Close ends the walk.
func (w *Walk) Close() {
	w.tree.close()
	w.end()
}
