package sandbox

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"path"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/rootfs"
)

// Write replaces a file's content, or appends to it. A reader sees the old content or the new. After an
// error, including one of the body, the old content is still there.
func (s *Service) Write(ctx context.Context, id string, r WriteRequest) (Written, error) {
	if r.Append && r.Exclusive {
		return Written{}, errs.Invalid("append and exclusive are both set; a file that must not exist has nothing to append to")
	}
	how := hostfs.Replace
	switch {
	case r.Append:
		how = hostfs.Append
	case r.Exclusive:
		how = hostfs.Exclusive
	}
	t, err := s.target(ctx, id, "path", Where{r.Path, r.Follow, r.Permissions}, accessCheck{doing: "write", mode: policy.Writable, last: linkIf(r.Follow, refuseLink)})
	if err != nil {
		return Written{}, err
	}
	defer t.close()
	file, err := s.create(&t, how, cmp.Or(r.Mode, newFile))
	if err != nil {
		return Written{}, t.failed("write", err)
	}
	defer file.Abort()
	// Each write switches to the owner's identity, which costs as much as 4 KiB: a body's small pieces are gathered.
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
	if file.Replaced() {
		s.removed(&t)
	}
	return Written{Bytes: n, ResolvedPath: t.hostPath(), SandboxPath: display(t.path)}, nil
}

// create begins to write a file. The caller commits or aborts it.
func (s *Service) create(t *fileTarget, how hostfs.CreateMode, mode fs.FileMode) (*hostfs.Writer, error) {
	file, err := t.root.Create(t.name, how, mode)
	if err != nil {
		return nil, err
	}
	// A container that has this very file mounted goes on with it, whatever takes its place.
	file.Keep(func(id hostfs.ID) bool {
		return s.executor.HoldsFile(t.user, dockerexec.FileID{Dev: id.Dev, Ino: id.Ino})
	})
	return file, nil
}

// newFile is the mode of a file that does not replace another.
const newFile = 0o644

// copyBuffer is how much of a stream is in memory.
const copyBuffer = 256 << 10

// Download opens a file; the caller closes it.
func (s *Service) Download(ctx context.Context, id string, where Where) (Download, error) {
	t, err := s.target(ctx, id, "path", where, accessCheck{doing: "read", mode: policy.ReadOnly, last: linkIf(where.Follow, refuseLink)})
	if err != nil {
		return Download{}, err
	}
	defer t.close() // an open file needs neither
	file, info, err := t.root.OpenFile(t.name)
	if err != nil {
		return Download{}, t.failed("read", err)
	}
	return Download{ReadSeekCloser: file, Name: path.Base(t.asked.String()), Size: info.Size, ModTime: info.ModTime, Mode: info.Mode}, nil
}

// maxEntries is how many names a listing has at most.
const maxEntries = 10_000

// ListDir lists a directory by name, without what is hidden.
func (s *Service) ListDir(ctx context.Context, id string, where Where) (Listing, error) {
	if where.Path == "" {
		where.Path = "."
	}
	t, err := s.target(ctx, id, "path", where, accessCheck{doing: "list", mode: policy.ReadOnly, last: linkIf(where.Follow, refuseLink)})
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

// Usage returns the disk space that a user's home takes, and what its file system has free, in bytes.
func (s *Service) Usage(ctx context.Context, id string) (used, free int64, err error) {
	box, err := s.Get(id)
	if err != nil {
		return 0, 0, err
	}
	h, err := s.planner.Files().OpenHome(ctx, box.User.String())
	if err != nil {
		return 0, 0, err
	}
	defer h.Close()
	used, free, err = h.Usage()
	if err != nil {
		return 0, 0, fmt.Errorf("cannot tell how much space the home takes: %w", errs.WithoutPath(err))
	}
	return used, free, nil
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
func (s *Service) Stat(ctx context.Context, id string, where Where) (Entry, error) {
	t, err := s.target(ctx, id, "path", where, accessCheck{doing: "look at", mode: policy.ReadOnly, last: linkIf(where.Follow, takeLink)})
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
	return Entry{Name: i.Name, Type: string(i.Type), Size: i.Size, Mode: uint32(i.Mode.Perm()), ModTime: i.ModTime, LinkTarget: i.Link}
}

// Mkdir makes a directory, and with parents also those above it.
func (s *Service) Mkdir(ctx context.Context, id, written string, parents bool) error {
	t, err := s.target(ctx, id, "path", Where{Path: written}, accessCheck{doing: "make", mode: policy.Writable})
	if err != nil {
		return err
	}
	defer t.close()
	return t.failed("make", t.root.Mkdir(t.name, parents))
}

// Remove removes a file, or with recursive a directory and all that is in it.
func (s *Service) Remove(ctx context.Context, id, written string, recursive bool) error {
	t, err := s.target(ctx, id, "path", Where{Path: written}, accessCheck{doing: "remove", mode: policy.Writable, last: takeLink, whole: true})
	if err != nil {
		return err
	}
	defer t.close()
	defer s.removed(&t) // also after an error: a part may be gone
	return t.failed("remove", t.root.Remove(t.name, recursive))
}

// removed has the user's containers release what was at a path.
func (s *Service) removed(t *fileTarget) { s.executor.Removed(t.user, t.hostPath(), t.path.String()) }

// Move renames a file or directory within one mount; overwrite replaces a file that is there.
func (s *Service) Move(ctx context.Context, id, written, writtenTo string, overwrite bool) error {
	check := accessCheck{doing: "move", mode: policy.Writable, last: takeLink, whole: true}
	from, err := s.target(ctx, id, "from", Where{Path: written}, check)
	if err != nil {
		return err
	}
	defer from.close()
	to, err := s.target(ctx, id, "to", Where{Path: writtenTo}, check)
	if err != nil {
		return err
	}
	defer to.close()
	if from.host != to.host {
		refuse := errs.Invalid
		if from.path != from.asked || to.path != to.asked {
			refuse = errs.Denied // as everything to which links lead
		}
		return refuse("cannot move %s to %s: they are in different mounts; copy it and remove it", from.shown(), to.shown())
	}
	if err := from.root.Move(from.name, to.name, overwrite); err != nil {
		return from.failed(fmt.Sprintf("move to %s:", to.shown()), err)
	}
	s.removed(&from) // or it is held when it is removed from its new place
	s.removed(&to)
	return nil
}

// Explain says what a call would get, and why, before anything runs; nothing is made for it.
func (s *Service) Explain(ctx context.Context, id string, asked Confinement) (Explanation, error) {
	c, err := s.call(id, asked)
	if err != nil {
		return Explanation{}, err
	}
	p, err := s.plan(ctx, c, true)
	if err != nil {
		return Explanation{}, err
	}
	e := Explanation{
		User: c.User.String(), WorkingDir: c.WorkingDir.String(), Runtime: p.Spec.Runtime(),
		Home: p.Home, HomeWhy: p.HomeWhy, Network: plan.NetworkText(p.Spec.Egress), Events: "none",
		Fingerprint: string(p.Spec.Fingerprint()), Places: p.Decision.View.Regions(),
	}
	if p.Decision.Events {
		e.Events = "the caller's control socket at " + rootfs.EventsPath
	}
	for _, container := range s.executor.Containers() {
		e.Warm = e.Warm || (string(container.Fingerprint) == e.Fingerprint && container.State != "starting")
	}
	return e, nil
}
