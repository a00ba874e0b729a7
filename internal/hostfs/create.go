package hostfs

import (
	"crypto/rand"
	"errors"
	"path"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
)

// temporaryPrefix begins the names of files that are being written.
const temporaryPrefix = ".daycare-"

// CreateMode says what Create does about a file that exists.
type CreateMode int

// Replace puts the new content in its place, Append adds to its end, Exclusive refuses it.
const (
	Replace CreateMode = iota + 1
	Append
	Exclusive
)

// newFile is the mode of a file that replaces none.
const newFile = 0o644

// Writer writes a file. Replaced and new files are written beside their place, under a name that begins
// with temporaryPrefix, and appear with Commit: who reads sees the old content or the new, and a crash
// leaves one of them. What is appended appears with each Write. One goroutine at a time uses a Writer,
// and ends it with Commit or Abort, either of which closes it.
type Writer struct {
	root         *Root
	name         string
	how          CreateMode
	parent, leaf string
	// dir is the directory of the file, file the descriptor that is written to.
	dir, file int
	// temp is the name of the new file in dir; "" when what exists is appended to.
	temp string
	// old is the size before the first Write, written the number of bytes since.
	old, written int64
	// failed is the first error; after it there is nothing left to take back.
	failed error
	closed bool
}

// Create begins to write a regular file, in directories that it makes if need be. What stands against
// it is said before a byte is written: it is of class ErrConflict when Exclusive finds the file there,
// ErrInvalidArgument or ErrPermissionDenied when the name or what has it is not fit, as of OpenFile,
// and errs.ErrNoSpace. A file that replaces another one keeps its permission bits, but not its owner; a new
// one has 0644.
func (r *Root) Create(name string, how CreateMode) (*Writer, error) {
	if err := checkEntry(name); err != nil {
		return nil, err
	}
	if how < Replace || how > Exclusive {
		return nil, errs.Invalid("%d is no way to write a file", how)
	}
	w := &Writer{root: r, name: name, how: how, file: -1}
	w.parent, w.leaf = path.Dir(name), path.Base(name)
	if err := r.asOwner(w.open); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *Writer) open() (err error) {
	if w.dir, err = w.root.makeDirs(w.parent); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(w.dir)
		}
	}()
	entry, there, err := w.target()
	if err != nil {
		return err
	}
	if entry < 0 || w.how != Append {
		if entry >= 0 {
			_ = unix.Close(entry)
		}
		return w.openTemp()
	}
	defer unix.Close(entry)
	w.file, there, err = w.root.reopen(entry, there, w.name, unix.O_WRONLY|unix.O_APPEND)
	w.old = there.Size
	return err
}

// target pins what has the name now, and refuses what may not be written. With no such file the
// descriptor is -1; else the caller closes it.
func (w *Writer) target() (int, Info, error) {
	entry, info, err := openPath(w.dir, w.leaf)
	switch {
	case errors.Is(err, unix.ENOENT):
		return -1, Info{Mode: newFile}, nil
	case err != nil:
		return -1, Info{}, w.root.fail(w.name, err)
	case w.how == Exclusive:
		err = classify(w.name, unix.EEXIST)
	case info.Type != Regular:
		err = notRegular(w.name, info.Type)
	default:
		return entry, info, nil
	}
	_ = unix.Close(entry)
	return -1, Info{}, err
}

// openTemp makes the new file. Its name cannot be guessed, and if it were, O_EXCL would fail.
func (w *Writer) openTemp() error {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW
	w.temp = temporaryPrefix + rand.Text()
	fd, err := openBeneath(w.dir, w.temp, flags, 0o600)
	if err != nil {
		return classify(w.name, err)
	}
	w.file = fd
	return nil
}
