package e2b

import (
	"context"
	"io"
	"path"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/files"
)

// fileSystem is what file calls need from a place. All paths are absolute and clean.
type fileSystem interface {
	stat(ctx context.Context, at string) (entry, error)
	// list visits what is in a directory and, down to depth, below it, each directory before what
	// is in it.
	list(ctx context.Context, dir string, depth uint32, visit func(entry) error) error
	// mkdir makes a directory and those above it; one that exists already is no error.
	mkdir(ctx context.Context, at string) error
	move(ctx context.Context, from, to string) error
	// remove removes a path with all that is below it; one that does not exist is no error.
	remove(ctx context.Context, at string) error
	// open opens a regular file.
	open(ctx context.Context, at string) (content, error)
	// write writes a file whole, and makes the directories above it.
	write(ctx context.Context, at string, body io.Reader) error
}

// entry is what there is at a path.
type entry struct {
	files.Entry
	at           string
	owner, group string
}

// content is an open file; one on the host can be read in parts, and has a modification time.
type content struct {
	whole   io.ReadCloser
	parts   io.ReadSeeker // nil for others
	modTime time.Time
}

// hostFiles implements files for the home and /tmp, which are directories of the host.
type hostFiles struct{ called }

func (h hostFiles) entry(at string, e files.Entry) entry {
	return entry{Entry: e, at: at, owner: "user", group: "user"}
}

func (h hostFiles) stat(ctx context.Context, at string) (entry, error) {
	e, err := h.service.Stat(ctx, h.ID(), files.Where{Path: at})
	return h.entry(at, e), err
}

func (h hostFiles) list(ctx context.Context, dir string, depth uint32,
	visit func(entry) error) error {
	entries, err := h.service.ListDir(ctx, h.ID(), files.Where{Path: dir})
	if err != nil {
		return err
	}
	if entries.Truncated {
		return errs.TooLarge("the directory %q has more than %d entries: list it by a command", dir,
			len(entries.Entries))
	}
	if err := takeListed(ctx, dir, entries.Entries...); err != nil {
		return err
	}
	for _, e := range entries.Entries {
		at := path.Join(dir, e.Name)
		if err := visit(h.entry(at, e)); err != nil {
			return err
		}
		if e.Type != "directory" || depth <= 1 {
			continue
		}
		// A directory that has gone meanwhile, or must not be read, has nothing to list.
		if err := h.list(ctx, at, depth-1, visit); err != nil && !cerrdefs.IsNotFound(err) &&
			!cerrdefs.IsPermissionDenied(err) {
			return err
		}
	}
	return nil
}

func (h hostFiles) mkdir(ctx context.Context, at string) error {
	return h.service.Mkdir(ctx, h.ID(), at, true)
}

func (h hostFiles) move(ctx context.Context, from, to string) error {
	if _, err := h.stat(ctx, from); err != nil {
		return err // before directories are made for the target
	}
	if err := h.mkdir(ctx, path.Dir(to)); err != nil {
		return err
	}
	return h.service.Move(ctx, h.ID(), from, to, true)
}

func (h hostFiles) remove(ctx context.Context, at string) error {
	err := h.service.Remove(ctx, h.ID(), at, true)
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	return err
}

func (h hostFiles) open(ctx context.Context, at string) (content, error) {
	file, err := h.service.Download(ctx, h.ID(), files.Where{Path: at})
	if err != nil {
		return content{}, err
	}
	// The file itself: in a wrapper net/http would see no descriptor, and copy what the kernel
	// could send.
	return content{whole: file, parts: file.ReadSeekCloser, modTime: file.ModTime}, nil
}

func (h hostFiles) write(ctx context.Context, at string, body io.Reader) error {
	_, err := h.service.Write(ctx, h.ID(), files.WriteRequest{Path: at, Body: body})
	return err
}
