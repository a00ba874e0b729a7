package hostfs

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Write writes all of p or returns an error, of class errs.ErrNoSpace when the disk or the quota is
// full. After an error, nothing of what was written is left, and Commit returns the same error.
func (w *Writer) Write(p []byte) (int, error) {
	if w.closed {
		return 0, os.ErrClosed
	}
	if w.failed != nil {
		return 0, w.failed
	}
	before := w.written
	// As the owner, because whoever writes is charged for the quota.
	err := w.root.owner.do(func() error {
		for len(p) > 0 {
			n := 0
			err := retry(func() (err error) { n, err = unix.Write(w.file, p); return err })
			if err == nil && n == 0 {
				err = io.ErrShortWrite
			}
			if err != nil {
				w.fail(classify(w.name, err))
				return w.failed
			}
			w.written += int64(n)
			p = p[n:]
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return int(w.written - before), nil
}

// Commit makes the file durable and visible, and returns how many bytes were written. The error is
// of class ErrConflict if, meanwhile, the directory was moved, or Exclusive or an Append that makes
// the file found the name taken. After an error, the Writer is as after Abort.
func (w *Writer) Commit() (int64, error) {
	if w.closed {
		return 0, os.ErrClosed
	}
	if w.failed != nil {
		w.close()
		return 0, w.failed
	}
	if err := w.root.asOwner(w.finish); err != nil {
		w.Abort()
		return 0, err
	}
	w.close()
	return w.written, nil
}

func (w *Writer) finish() error {
	if w.temp == "" {
		return classify(w.name, unix.Fsync(w.file))
	}
	entry, err := w.prepare()
	if err != nil {
		return err
	}
	if w.rename != nil && w.how == Replace && (entry < 0 || w.held == nil || !w.holds(entry)) &&
		w.rename(w.temp) {
		if entry >= 0 {
			_ = unix.Close(entry)
		}
		if w.hasAppeared() {
			return w.appeared(entry >= 0)
		}
		if entry, err = w.prepare(); err != nil { // anything may have happened meanwhile
			return err
		}
	}
	if entry >= 0 {
		defer unix.Close(entry)
	}
	return w.place(entry)
}

// prepare makes the new file ready for its name, and returns what has that name now, as target does.
func (w *Writer) prepare() (entry int, err error) {
	entry, there, err := w.target()
	if err != nil {
		return -1, err
	}
	defer func() {
		if err != nil && entry >= 0 {
			_ = unix.Close(entry)
		}
	}()
	if err := unix.Fchmod(w.file, uint32(there.Mode&fs.ModePerm)); err != nil {
		return entry, classify(w.name, err)
	}
	if !w.unsynced {
		if err := unix.Fsync(w.file); err != nil {
			return entry, classify(w.name, err)
		}
	}
	return entry, w.inPlace()
}

// place gives the new file its name. entry is what has that now, or -1.
func (w *Writer) place(entry int) (err error) {
	if entry >= 0 && w.held != nil {
		if there, err := inspect(entry, ""); err == nil && w.held(there.ID) {
			return w.overwrite(entry, there)
		}
	}
	if w.how == Replace {
		err = unix.Renameat(w.dir, w.temp, w.dir, w.leaf)
	} else {
		err = renameNew(w.dir, w.temp, w.dir, w.leaf)
	}
	if errors.Is(err, unix.ENOENT) && w.hasAppeared() { // somebody else has been late
		return w.appeared(entry >= 0)
	}
	w.replaced = err == nil && entry >= 0
	return classify(w.name, err)
}

func (w *Writer) holds(entry int) bool {
	there, err := inspect(entry, "")
	return err == nil && w.held(there.ID)
}

// RenameBy has Commit let somebody else rename a new file that may replace another, from a name in
// the file's directory to the file's own. rename blocks until that is done or not, and reports
// whether anybody was asked; what they have done is looked at.
func (w *Writer) RenameBy(rename func(temp string) (asked bool)) { w.rename = rename }

// hasAppeared reports whether the new file has its name.
func (w *Writer) hasAppeared() bool {
	if w.rename == nil {
		return false
	}
	file, err1 := inspect(w.file, "")
	named, err2 := inspect(w.dir, w.leaf)
	return err1 == nil && err2 == nil && file.ID == named.ID
}

// appeared ends a write whose file was given its name by somebody else, who may have left the other
// name, too, or have moved the directory.
func (w *Writer) appeared(replaced bool) error {
	_ = unix.Unlinkat(w.dir, w.temp, 0)
	w.replaced = replaced
	return w.dirInPlace()
}

// Replaced reports whether Commit has put a new file in the place of another.
func (w *Writer) Replaced() bool { return w.replaced }

// Keep makes Commit write into an existing file, instead of replacing it, if held reports that this
// very file has to stay. A reader may then see a part of the new content.
func (w *Writer) Keep(held func(ID) bool) { w.held = held }

// NoSync makes Commit not wait for the disk, for one of many files: after a power cut, it may be
// missing or empty.
func (w *Writer) NoSync() { w.unsynced = true }

// overwrite gives an existing file the new content. The space for it is taken before a byte of the
// old one is lost.
func (w *Writer) overwrite(entry int, there Info) error {
	fd, _, err := w.root.reopen(entry, there, w.name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	to := os.NewFile(uintptr(fd), "")
	defer to.Close()
	if w.written > 0 {
		err := unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, w.written)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return classify(w.name, err)
		}
	}
	if now, err := inspect(w.file, ""); err != nil || now.Size != w.written {
		return errs.Conflict("%s changed while it was written", quoted(w.name))
	}
	// By the descriptor: the owner can have put anything under the name, such as a FIFO that nobody
	// writes to.
	from, before := readerAt(w.file), min(there.Size, w.written)
	// What is beyond the old end comes first: not every file system could take the space for it.
	if _, err := io.Copy(io.NewOffsetWriter(to, before),
		io.NewSectionReader(from, before, w.written-before)); err != nil {
		return classify(w.name, errors.Join(err, unix.Ftruncate(fd, there.Size)))
	}
	if _, err := io.Copy(to, io.NewSectionReader(from, 0, before)); err != nil {
		return classify(w.name, err)
	}
	if err := errors.Join(unix.Ftruncate(fd, w.written), unix.Fsync(fd)); err != nil {
		return classify(w.name, err)
	}
	return classify(w.name, unix.Unlinkat(w.dir, w.temp, 0))
}

// readerAt reads from a descriptor, which stays open.
type readerAt int

func (fd readerAt) ReadAt(p []byte, at int64) (n int, err error) {
	err = retry(func() error { n, err = unix.Pread(int(fd), p, at); return err })
	if err == nil && n == 0 && len(p) > 0 {
		err = io.EOF
	}
	return max(n, 0), err
}

// inPlace checks, as late as possible, that the directory is still where it was and the new file is
// in it. Otherwise the owner has moved them, and the content would appear elsewhere, or something
// else would appear here.
func (w *Writer) inPlace() error {
	if err := w.dirInPlace(); err != nil {
		return err
	}
	written, err1 := inspect(w.file, "")
	named, err2 := inspect(w.dir, w.temp)
	if errors.Join(err1, err2) != nil || written.ID != named.ID {
		return w.moved()
	}
	return nil
}

// dirInPlace checks that the directory is still where it was.
func (w *Writer) dirInPlace() error {
	dir, err := openBeneath(w.root.dir, w.parent, asParent, 0)
	if err != nil {
		return w.root.fail(w.parent, err)
	}
	defer unix.Close(dir)
	opened, err1 := inspect(w.dir, "")
	present, err2 := inspect(dir, "")
	if errors.Join(err1, err2) != nil || opened.ID != present.ID {
		return w.moved()
	}
	return nil
}

func (w *Writer) moved() error {
	return errs.Conflict("the directory of %s changed while the file was written", quoted(w.name))
}

// Abort undoes what was written and closes the Writer. After Commit it does nothing.
func (w *Writer) Abort() {
	if w.closed {
		return
	}
	_ = w.root.owner.do(func() error {
		w.fail(os.ErrClosed)
		return nil
	})
	w.close()
}

// fail undoes what was written, once. Appended bytes are cut off again, unless somebody else has
// appended since: those bytes are not ours to cut.
func (w *Writer) fail(err error) {
	if w.failed != nil {
		return
	}
	w.failed = err
	if w.temp != "" {
		_ = unix.Unlinkat(w.dir, w.temp, 0)
		return
	}
	if now, err := inspect(w.file, ""); err == nil && now.Size == w.old+w.written && w.written > 0 {
		_ = unix.Ftruncate(w.file, w.old)
	}
}

func (w *Writer) close() {
	w.closed = true
	_ = unix.Close(w.file)
	_ = unix.Close(w.dir)
}
