package rootfs

import (
	"errors"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// mountView is a host directory and where a container shows it: the home, or a further mount.
type mountView struct{ dir, target string }

// at returns the host path of a path in the directory.
func (v mountView) at(rest string) string { return filepath.Join(v.dir, rest) }

// viewOf returns the mount that shows a container path, and the rest of the path below it. ok is
// false for a path that belongs to the image.
func (p *Preparer) viewOf(spec dockerexec.Spec, target string) (v mountView, rest string, ok bool) {
	v = mountView{filepath.Join(p.usersDir, spec.User, "home"), policy.Home.String()}
	if rest, ok = pathmap.CutDir(target, v.target); ok {
		return v, rest, true
	}
	for _, m := range spec.Mounts { // a part of a mount may be mounted in it once more: the widest counts
		if pathmap.Within(target, m.Target) && (!ok || len(m.Target) < len(v.target)) {
			v, ok = mountView{m.Source, m.Target}, true
		}
	}
	rest, _ = pathmap.CutDir(target, v.target)
	return v, rest, ok
}

// protectedMounts returns the mounts that make something in a writable place read-only. Like a
// mask, such a mount is lost when somebody on the host puts another file under its name.
func protectedMounts(spec dockerexec.Spec) []dockerexec.Mount {
	var all []dockerexec.Mount
	for _, m := range spec.Mounts {
		if m.ReadOnly && isWritable(spec, path.Dir(m.Target)) {
			all = append(all, m)
		}
	}
	return all
}

// rootDir is an open host directory in which a Spec has mount points.
type rootDir struct {
	mountView
	fd   int
	root *hostfs.Root // for what is done as the home's owner
}

// rootDirs are the directories of one Spec, opened as they are needed.
type rootDirs struct {
	preparer *Preparer
	spec     dockerexec.Spec
	open     map[string]*rootDir // by target
	silent   error               // why nothing is looked at
}

func (p *Preparer) rootDirs(spec dockerexec.Spec) *rootDirs {
	return &rootDirs{preparer: p, spec: spec, open: map[string]*rootDir{}}
}

// find returns the directory that holds a container path, and the rest of the path below it. It is
// nil for a path that belongs to the image.
func (d *rootDirs) find(target string) (_ *rootDir, rest string, _ error) {
	view, rest, ok := d.preparer.viewOf(d.spec, target)
	if !ok || d.silent != nil {
		return nil, "", d.silent
	}
	if known := d.open[view.target]; known != nil {
		return known, rest, nil
	}
	fd, err := openNoFollow(view.dir)
	if err != nil {
		return nil, "", err
	}
	root, err := openRoot(hostfs.Config{Dir: view.dir, UID: d.spec.UID, GID: d.spec.GID,
		Walks: d.preparer.walks, User: d.spec.User})
	if err == nil {
		err = d.checkSame(view, fd)
	}
	if err != nil {
		if root != nil {
			_ = root.Close()
		}
		return nil, "", errors.Join(err, unix.Close(fd))
	}
	opened := &rootDir{mountView: view, fd: fd, root: root}
	d.open[view.target] = opened
	return opened, rest, nil
}

// mustFind is find for a path that does not belong to the image.
func (d *rootDirs) mustFind(target string) (*rootDir, string, error) {
	dir, rest, err := d.find(target)
	if err == nil && dir == nil {
		err = errors.New("no mount holds it")
	}
	return dir, rest, err
}

// checkSame checks that an open directory is the one that the Spec mounts.
func (d *rootDirs) checkSame(view mountView, fd int) error {
	it, err := identifyOpen(fd)
	if err != nil {
		return err
	}
	for _, m := range d.spec.Mounts {
		if m.Target == view.target && !m.ID.Same(it.id) {
			return errExchanged
		}
	}
	return nil
}

func (d *rootDirs) close() {
	for _, dir := range d.open {
		_ = dir.root.Close()
		_ = unix.Close(dir.fd)
	}
}
