package files

import (
	"context"
	"errors"
	"io"
	"path"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/archive"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// Packing is a directory that is to be sent as an archive; the caller closes it.
type Packing struct {
	// Name is that of the directory, as its caller named it.
	Name string

	target fileTarget
	walk   *hostfs.Walk
	info   hostfs.Info
	left   archive.LeftOut
}

// Pack opens a directory to send it as an archive.
func (f *Files) Pack(ctx context.Context, id string, where Where) (*Packing, error) {
	t, err := f.target(ctx, id, "path", where,
		accessCheck{doing: "read", mode: policy.ReadOnly, last: linkIf(where.Follow, refuseLink)})
	if err != nil {
		return nil, err
	}
	walk, info, err := t.root.Walk(t.name, archive.MaxEntries)
	if err != nil {
		t.close()
		return nil, t.failed("read", err)
	}
	return &Packing{Name: path.Base(t.asked.String()), target: t, walk: walk, info: info}, nil
}

// Close ends a packing, before its end or after.
func (p *Packing) Close() {
	p.walk.Close()
	p.target.close()
}

// Send writes the archive. What may not be seen is left out, as by ListDir, and counted in it, as
// are FIFOs, sockets and devices, what is in other mounts, and what the owner has closed to itself.
// After an error, the archive has no end; where it can, it says why.
func (p *Packing) Send(to io.Writer) error {
	out := archive.NewWriter(to)
	err := out.Add(archiveEntry(".", archive.Directory, p.info), nil)
	for err == nil {
		err = p.next(out)
	}
	if errors.Is(err, io.EOF) {
		return out.End(p.left)
	}
	err = p.target.failed("read", err)
	_ = out.Fail(err.Error()) // in the middle of a file, this fails, too
	return err
}

func archiveEntry(name string, kind archive.Kind, info hostfs.Info) archive.Entry {
	return archive.Entry{Name: name, Kind: kind, Mode: info.Mode, Size: info.Size, Text: info.Link,
		ModTime: info.ModTime}
}

// next adds another entry, or counts that it is left out. The error is io.EOF at the end.
func (p *Packing) next(out *archive.Writer) error {
	name, info, err := p.walk.Next()
	if err != nil {
		return err
	}
	shown, enter := p.sees(name, info.Type)
	if !shown {
		return nil
	}
	switch info.Type {
	case hostfs.Directory:
		return p.directory(out, name, info, enter)
	case hostfs.Symlink:
		return out.Add(archiveEntry(name, archive.Link, info), nil)
	case hostfs.Regular:
		return p.file(out, name)
	case hostfs.Mount:
		p.left.Mounts++
	default:
		p.left.Special++
	}
	return nil
}

// sees reports whether an entry is shown, and a directory's entries with it; it counts one that is
// not.
func (p *Packing) sees(name string, is hostfs.Type) (shown, enter bool) {
	t := &p.target
	child, err := t.path.ResolveName("./" + name)
	if err != nil {
		return true, true // a name that no path of ours can hold hides nothing
	}
	at, ok := t.view.At(child)
	switch {
	case ok && at.Mode == policy.Empty && at.Path == child && is == hostfs.Directory:
		_, enter = t.view.Holds(child)
		return true, enter
	case ok && at.Mode == policy.Empty:
		return false, false // what is in there is nobody's to count
	case !ok || at.Mode < policy.ReadOnly:
		p.left.Hidden++
		return false, false
	case t.mountOf(child) != t.base:
		p.left.Mounts++
		return false, false
	}
	return true, true
}

// mountOf returns the place of the mount that shows a path; the zero value for none.
func (t *fileTarget) mountOf(child pathmap.ContainerPath) pathmap.ContainerPath {
	if child.Within(policy.Tmp) {
		return policy.Tmp
	}
	at, _, err := t.paths.Locate(child)
	if err != nil {
		return pathmap.ContainerPath{}
	}
	return at.Container
}

func (p *Packing) directory(out *archive.Writer, name string, info hostfs.Info, enter bool) error {
	if p.walk.Kept() {
		p.left.Hidden++
		return nil
	}
	if enter {
		switch err := p.walk.Enter(); {
		case cerrdefs.IsNotFound(err):
			return nil
		case cerrdefs.IsPermissionDenied(err):
			p.left.Unreadable++ // and an archive has it as an empty one
		case err != nil:
			return err
		}
	}
	return out.Add(archiveEntry(name, archive.Directory, info), nil)
}

func (p *Packing) file(out *archive.Writer, name string) error {
	file, info, err := p.walk.Open()
	switch {
	case errors.Is(err, hostfs.ErrOtherName):
		p.left.Hidden++
		return nil
	case cerrdefs.IsPermissionDenied(err):
		p.left.Unreadable++
		return nil
	case cerrdefs.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	defer file.Close()
	return out.Add(archiveEntry(name, archive.File, info), file)
}
