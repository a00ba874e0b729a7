// Package files carries out the file calls: it reads, writes, lists, watches, packs and unpacks
// what is in a user's home, in /tmp and in further mounts, on the host's side of them. A path is
// one inside, and policy decides about it as about a command's.
package files

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"path"
	"sync/atomic"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/registry"
)

// Executor knows what containers have of files. *dockerexec.Executor is one.
type Executor interface {
	HoldsFile(user string, id dockerexec.FileID) bool
	Removed(user, host, inside string)
	Changed(user, host, inside string, change dockerexec.Change)
	RenameInside(ctx context.Context, user, host, inside, temp string) (asked bool)
}

// Files carries out file calls. It is safe for concurrent use.
type Files struct {
	planner   *plan.Planner
	executor  Executor
	tmp       plan.TmpOpener
	sandboxes *registry.Registry // those that the callers may name
	token     quota.Token        // that they use
	images    *atomic.Pointer[ImageBounds]
}

// New returns Files of all sandboxes.
func New(planner *plan.Planner, executor Executor, tmp plan.TmpOpener) *Files {
	f := &Files{planner: planner, executor: executor, tmp: tmp, sandboxes: planner.Sandboxes(),
		images: &atomic.Pointer[ImageBounds]{}}
	f.SetMaxImage(ImageBounds{})
	return f
}

// Scoped returns the Files of some sandboxes, for the callers of a token.
func (f *Files) Scoped(sandboxes *registry.Registry, token quota.Token) *Files {
	part := *f
	part.sandboxes, part.token = sandboxes, token
	return &part
}

// SetMaxImage bounds the images that a read returns.
func (f *Files) SetMaxImage(limit ImageBounds) { f.images.Store(&limit) }

// Write replaces a file's content, or appends to it. A reader sees the old content or the new.
// After an error, including one of the body, the old content is still there.
func (f *Files) Write(ctx context.Context, id string, r WriteRequest) (Written, error) {
	if r.Append && r.Exclusive {
		return Written{},
			errs.Invalid(
				"append and exclusive are both set; a file that must not exist has nothing to append to")
	}
	how := hostfs.Replace
	switch {
	case r.Append:
		how = hostfs.Append
	case r.Exclusive:
		how = hostfs.Exclusive
	}
	t, err := f.target(ctx, id, "path", Where{r.Path, r.Follow, r.Permissions},
		accessCheck{doing: "write", mode: policy.Writable, last: linkIf(r.Follow, refuseLink)})
	if err != nil {
		return Written{}, err
	}
	defer t.close()
	file, err := f.create(&t, how, cmp.Or(r.Mode, newFile))
	if err != nil {
		return Written{}, t.failed("write", err)
	}
	defer file.Abort()
	file.RenameBy(func(temp string) bool {
		return f.executor.RenameInside(ctx, t.user, t.hostPath(), t.path.String(), temp)
	})
	// Each write switches to the owner's identity, which costs as much as 4 KiB: a body's small
	// pieces are gathered.
	to := bufio.NewWriterSize(file, copyBuffer)
	if _, err := to.ReadFrom(r.Body); err != nil {
		return Written{}, t.failed("write", err)
	}
	if err := to.Flush(); err != nil {
		return Written{}, t.failed("write", err)
	}
	n, err := file.Commit()
	if err != nil {
		return Written{}, t.failed("write", err)
	}
	f.written(&t, file, r.Append)
	return Written{Bytes: n, ResolvedPath: t.hostPath(), SandboxPath: display(t.path)}, nil
}

// create begins to write a file. The caller commits or aborts it.
func (f *Files) create(t *fileTarget, how hostfs.CreateMode,
	mode fs.FileMode) (*hostfs.Writer, error) {
	file, err := t.root.Create(t.name, how, mode)
	if err != nil {
		return nil, err
	}
	// A container that has this very file mounted goes on with it, whatever takes its place.
	file.Keep(func(id hostfs.ID) bool {
		return f.executor.HoldsFile(t.user, dockerexec.FileID{Dev: id.Dev, Ino: id.Ino})
	})
	return file, nil
}

// written has the user's containers hear of a file that was written, and release the one before it.
func (f *Files) written(t *fileTarget, file *hostfs.Writer, appended bool) {
	switch {
	case file.Replaced():
		f.executor.Changed(t.user, t.hostPath(), t.path.String(), dockerexec.Replaced)
		f.removed(t)
	case appended:
		f.executor.Changed(t.user, t.hostPath(), t.path.String(), dockerexec.Modified)
	default:
		f.changed(t)
	}
}

// changed has the user's containers hear of what has come to be at a path.
func (f *Files) changed(t *fileTarget) {
	f.executor.Changed(t.user, t.hostPath(), t.path.String(), dockerexec.Made)
	// The directory that it is in may have been made for it.
	if t.name != "." && path.Dir(t.name) != "." {
		f.executor.Changed(t.user, path.Dir(t.hostPath()), path.Dir(t.path.String()), dockerexec.Made)
	}
}

// newFile is the mode of a file that does not replace another.
const newFile = 0o644

// copyBuffer is how much of a stream is in memory.
const copyBuffer = 256 << 10

// Download opens a file; the caller closes it.
func (f *Files) Download(ctx context.Context, id string, where Where) (Download, error) {
	t, err := f.target(ctx, id, "path", where,
		accessCheck{doing: "read", mode: policy.ReadOnly, last: linkIf(where.Follow, refuseLink)})
	if err != nil {
		return Download{}, err
	}
	defer t.close() // an open file needs neither
	file, info, err := t.root.OpenFile(t.name)
	if err != nil {
		return Download{}, t.failed("read", err)
	}
	return Download{ReadSeekCloser: file, Name: path.Base(t.asked.String()), Size: info.Size,
		ModTime: info.ModTime, Mode: info.Mode}, nil
}

// maxEntries is how many names a listing has at most.
const maxEntries = 10_000

// ListDir lists a directory by name, without what is hidden.
func (f *Files) ListDir(ctx context.Context, id string, where Where) (Listing, error) {
	if where.Path == "" {
		where.Path = "."
	}
	t, err := f.target(ctx, id, "path", where,
		accessCheck{doing: "list", mode: policy.ReadOnly, last: linkIf(where.Follow, refuseLink)})
	if err != nil {
		return Listing{}, err
	}
	defer t.close()
	list := Listing{Path: display(t.path), Entries: []Entry{}}
	entries, more, err := t.root.List(t.name, maxEntries)
	if err != nil {
		return Listing{}, t.failed("list", err)
	}
	list.Truncated = more
	for _, e := range entries {
		if t.shows(e.Name) {
			list.Entries = append(list.Entries, entry(e))
		}
	}
	return list, nil
}

// shows reports whether a name in the directory may be seen.
func (t *fileTarget) shows(name string) bool {
	child, err := t.path.ResolveName("./" + name)
	if err != nil {
		return true // a name that no path of ours can hold hides nothing
	}
	at, ok := t.view.At(child)
	return ok && (at.Mode >= policy.ReadOnly || (at.Mode == policy.Empty && at.Path == child))
}

// Stat describes what is at a path, which may be a symbolic link.
func (f *Files) Stat(ctx context.Context, id string, where Where) (Entry, error) {
	t, err := f.target(ctx, id, "path", where,
		accessCheck{doing: "look at", mode: policy.ReadOnly, last: linkIf(where.Follow, takeLink)})
	if err != nil {
		return Entry{}, err
	}
	defer t.close()
	info, err := t.root.Stat(t.name)
	if err != nil {
		return Entry{}, t.failed("look at", err)
	}
	info.Name = path.Base(t.asked.String())
	return entry(info), nil
}

func entry(i hostfs.Info) Entry {
	return Entry{Name: i.Name, Type: string(i.Type), Size: i.Size, Mode: uint32(i.Mode.Perm()),
		ModTime: i.ModTime, LinkTarget: i.Link}
}

// Mkdir makes a directory, and with parents also those above it.
func (f *Files) Mkdir(ctx context.Context, id, written string, parents bool) error {
	t, err := f.target(ctx, id, "path", Where{Path: written},
		accessCheck{doing: "make", mode: policy.Writable})
	if err != nil {
		return err
	}
	defer t.close()
	defer f.changed(&t)
	return t.failed("make", t.root.Mkdir(t.name, parents))
}

// Remove removes a file, or with recursive a directory and all that is in it.
func (f *Files) Remove(ctx context.Context, id, written string, recursive bool) error {
	t, err := f.target(ctx, id, "path", Where{Path: written},
		accessCheck{doing: "remove", mode: policy.Writable, last: takeLink, whole: true})
	if err != nil {
		return err
	}
	defer t.close()
	defer f.removed(&t) // also after an error: a part may be gone
	return t.failed("remove", t.root.Remove(t.name, recursive))
}

// removed has the user's containers release what was at a path.
func (f *Files) removed(t *fileTarget) { f.executor.Removed(t.user, t.hostPath(), t.path.String()) }

// Move renames a file or directory within one mount; overwrite replaces a file that is there.
func (f *Files) Move(ctx context.Context, id, written, writtenTo string, overwrite bool) error {
	check := accessCheck{doing: "move", mode: policy.Writable, last: takeLink, whole: true}
	from, err := f.target(ctx, id, "from", Where{Path: written}, check)
	if err != nil {
		return err
	}
	defer from.close()
	to, err := f.target(ctx, id, "to", Where{Path: writtenTo}, check)
	if err != nil {
		return err
	}
	defer to.close()
	if from.host != to.host {
		refuse := errs.Invalid
		if from.path != from.asked || to.path != to.asked {
			refuse = errs.Denied // as everything to which links lead
		}
		return refuse("cannot move %s to %s: they are in different mounts; copy it and remove it",
			from.shown(), to.shown())
	}
	if err := from.root.Move(from.name, to.name, overwrite); err != nil {
		return from.failed(fmt.Sprintf("move to %s:", to.shown()), err)
	}
	f.removed(&from) // or it is held when it is removed from its new place
	f.removed(&to)
	return nil
}
