package files

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/archive"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/policy"
)

// Unpacked says what an archive has brought, and where.
type Unpacked struct {
	Entries int64 // without those that were skipped
	Bytes   int64 // in its files
	Skipped int64 // FIFOs
	// SandboxPath is the directory as an agent names it: ~/… in the home.
	SandboxPath string
}

// The bits that each entry has, so that what follows in an archive can be put into it, and read
// later.
const (
	ownerReads   fs.FileMode = 0o400
	ownerChanges fs.FileMode = 0o700 // of a directory
)

// Unpack writes an archive's entries below a directory, which it makes if it is missing. Each entry
// is decided about as a call of its own: no symbolic link is followed, neither one that is there
// nor one that the archive brings. A file that exists is replaced as by Write, a link by a link,
// and a directory takes what is new. After an error, what came before it stays, whole files only;
// the error says how much that is.
func (f *Files) Unpack(ctx context.Context, id string, where Where,
	body io.Reader) (Unpacked, error) {
	t, err := f.target(ctx, id, "path", where,
		accessCheck{doing: "write", mode: policy.Writable, last: linkIf(where.Follow, refuseLink)})
	if err != nil {
		return Unpacked{}, err
	}
	defer t.close()
	switch info, err := t.root.Stat(t.name); {
	case err == nil && info.Type != hostfs.Directory:
		return Unpacked{}, t.failed("write",
			errs.Conflict("it is a %s, not a directory", info.Type))
	case err != nil && !cerrdefs.IsNotFound(err):
		return Unpacked{}, t.failed("write", err)
	}
	u := unpacking{files: f, target: &t, from: archive.NewReader(body),
		buffer: bufio.NewWriterSize(nil, copyBuffer)}
	u.done.SandboxPath = display(t.path)
	for {
		switch err := u.next(); {
		case errors.Is(err, io.EOF):
			u.done.Skipped = u.from.Skipped()
			return u.done, nil
		case err != nil && u.done.Entries > 0:
			return u.done, fmt.Errorf("%w; what came before it stays: entries %d, bytes %d", err,
				u.done.Entries, u.done.Bytes)
		case err != nil:
			return u.done, err
		}
	}
}

// unpacking is an archive that is being written.
type unpacking struct {
	files  *Files
	target *fileTarget // of the directory
	from   *archive.Reader
	buffer *bufio.Writer
	done   Unpacked
}

func (u *unpacking) next() error {
	e, err := u.from.Next()
	if errors.Is(err, io.EOF) && u.done.Entries == 0 {
		if _, fault := u.target.root.MakeDir(u.target.name, newDir); fault != nil {
			return u.target.failed("make", fault)
		}
		return err
	}
	if errors.Is(err, io.EOF) {
		return err
	}
	if err != nil {
		return u.target.failed("write", err)
	}
	t, err := u.entry(e)
	if err != nil {
		return err
	}
	switch e.Kind {
	case archive.Directory:
		_, err = t.root.MakeDir(t.name, e.Mode|ownerChanges)
		u.files.changed(t)
	case archive.Link:
		err = t.root.Symlink(e.Text, t.name)
	case archive.File:
		err = u.file(t, e)
	}
	if err != nil {
		return t.failed("write", err)
	}
	u.done.Entries++
	u.done.Bytes += e.Size
	return nil
}

// newDir is the mode of a directory that an archive does not have.
const newDir = 0o755

// entry returns where an entry comes, if the view allows that.
func (u *unpacking) entry(e archive.Entry) (*fileTarget, error) {
	at, err := u.target.path.ResolveName("./" + e.Name)
	if err != nil {
		return nil, errs.Invalid("cannot write %q: %v", e.Name, err)
	}
	t := *u.target
	t.free = nil // the directory's
	t.asked, t.path, t.name = at, at, path.Join(t.name, e.Name)
	if t.mountOf(at) != t.base {
		return nil, errs.Denied(
			"cannot write %s: it is in another mount than %s; copy what is there by itself",
			t.shown(), u.target.shown())
	}
	return &t, t.allow(accessCheck{doing: "write", mode: policy.Writable,
		whole: e.Kind == archive.Link})
}

func (u *unpacking) file(t *fileTarget, e archive.Entry) error {
	file, err := u.files.create(t, hostfs.Replace, e.Mode|ownerReads)
	if err != nil {
		return err
	}
	defer file.Abort()
	file.NoSync()
	u.buffer.Reset(file)
	n, err := u.buffer.ReadFrom(u.from)
	if err != nil {
		return err
	}
	if n != e.Size {
		return errs.Invalid("the archive has %d bytes of it, not %d", n, e.Size)
	}
	if err := u.buffer.Flush(); err != nil {
		return err
	}
	if _, err = file.Commit(); err == nil {
		u.files.written(t, file, false)
	}
	return err
}
