package hostfs

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"path"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
)

// temporaryPrefix begins the names of files that are being written.
const temporaryPrefix = ".daycare-"

// CreateMode says what Create does when the file exists.
type CreateMode int

// Replace replaces an existing file's content, Append appends to it, and Exclusive refuses it.
const (
	Replace CreateMode = iota + 1
	Append
	Exclusive
)

// Writer writes a file. Replaced and new files are written next to their final place, under a name
// that begins with temporaryPrefix, and appear with Commit: a reader sees the old content or the
// new, and a crash leaves one of the two. Appended data appears with each Write. Only one goroutine
// at a time may use a Writer, and must end it with Commit or Abort, either of which closes it.
type Writer struct {
	root         *Root
	name         string
	how          CreateMode
	mode         fs.FileMode // of a file that does not replace another
	parent, leaf string
	// dir is the directory of the file, file the descriptor that is written to.
	dir, file int
	// temp is the name of the new file in dir; "" when appending to an existing file.
	temp string
	// held reports whether a file has to stay the one that it is; nil for none.
	held func(ID) bool
	// rename renames the new file in Commit's place; nil for none.
	rename func(temp string) (asked bool)
	// unsynced leaves it to the kernel when the file comes to disk.
	unsynced bool
	// old is the size before the first Write, written the number of bytes since.
	old, written int64
	// failed is the first error; after it there is nothing left to undo.
	failed error
	closed bool
	// replaced says that Commit has put the new file in the place of another.
	replaced bool
}

// Create starts writing a regular file, and makes missing directories. It reports obstacles before
// a byte is written: the error is of class ErrConflict when Exclusive finds the file there,
// ErrInvalidArgument or ErrPermissionDenied when the name or the existing file is unsuitable, as
// for OpenFile, or errs.ErrNoSpace. A file that replaces another keeps its permission bits, but not
// its owner; a new one has those of mode.
func (r *Root) Create(name string, how CreateMode, mode fs.FileMode) (*Writer, error) {
	if err := checkEntry(name); err != nil {
		return nil, err
	}
	if how < Replace || how > Exclusive {
		return nil, errs.Invalid("cannot write a file in the unknown mode %d", how)
	}
	w := &Writer{root: r, name: name, how: how, mode: mode.Perm(), file: -1}
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

// target opens the file that has the name now, and refuses one that may not be written. If there is
// none, the descriptor is -1; otherwise the caller closes it.
func (w *Writer) target() (int, Info, error) {
	entry, info, err := openPath(w.dir, w.leaf)
	switch {
	case errors.Is(err, unix.ENOENT):
		return -1, Info{Mode: w.mode}, nil
	case err != nil:
		return -1, Info{}, w.root.fail(w.name, err)
	case info.closed:
		err = keptEmpty(w.name)
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

// keptEmpty is the error for writing to what is there for a container's mask.
func keptEmpty(name string) error {
	return errs.Conflict(
		"%s is kept empty, because a container hides that path: remove it, which ends the container, or write when the container has gone",
		quoted(name))
}

// temporaryName returns a name that nobody can guess.
func temporaryName() string { return temporaryPrefix + rand.Text() }

// openTemp makes the new file. Its name cannot be guessed, and if it were, O_EXCL would fail.
func (w *Writer) openTemp() error {
	const flags = unix.O_RDWR | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW // overwrite reads it
	w.temp = temporaryName()
	fd, err := openBeneath(w.dir, w.temp, flags, 0o600)
	if err != nil {
		return classify(w.name, err)
	}
	w.file = fd
	return nil
}
