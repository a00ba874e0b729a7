package sandbox

import (
	"fmt"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// mask finds what a region hides. In a home or a further mount something has to be at the place where the
// mask is put.
func (b *builder) mask(v policy.View, r policy.Region) (dockerexec.Mask, error) {
	m := dockerexec.Mask{Target: r.Path.String(), Listable: r.Mode == policy.Empty, Holds: held(v, r)}
	at, rest, err := b.paths.Locate(r.Path)
	if err != nil { // it is the image's
		m.File = r.File
		return m, nil
	}
	there, err := b.lookAt(at, rest)
	if err != nil {
		return m, errs.Denied("cannot hide %q: %v", r.Path, err)
	}
	m.File, m.ID = there.file, there.hiddenBy(m)
	if m.Absent = !there.exists && b.unchanging(at); !m.Absent {
		m.Place = b.place(at, rest)
	}
	if there.exists && !there.empty {
		b.secrets[at] = append(b.secrets[at], rest)
	}
	return m, nil
}

// held are the mount points in a region that is masked.
func held(v policy.View, r policy.Region) (names []string) {
	for _, inner := range v.Regions() {
		around, ok := v.Around(inner.Path)
		if rest, below := pathmap.CutDir(inner.Path.String(), r.Path.String()); ok && below && around.Path == r.Path && inner.Mode >= policy.ReadOnly {
			names = append(names, rest)
		}
	}
	return names
}

// unchanging reports whether a mount's file system is read-only, so that nothing can appear in it.
func (b *builder) unchanging(at pathmap.Mount) bool {
	var st unix.Statfs_t
	return unix.Statfs(b.place(at, "."), &st) == nil && st.Flags&unix.ST_RDONLY != 0
}

// vacant adds a mask for a path that is to be read only in a place that can be written, and that is not
// there. false is for all other regions, which are mounted.
func (b *builder) vacant(v policy.View, r policy.Region, spec *dockerexec.Spec) bool {
	around, ok := v.Around(r.Path)
	if !ok || around.Mode != policy.Writable {
		return false
	}
	at, rest, err := b.paths.Locate(r.Path)
	if err != nil {
		return false
	}
	there, err := b.lookAt(at, rest)
	if err != nil || !there.isVacant() {
		return false // also what cannot be looked at: to mount it is refused
	}
	spec.Masks = append(spec.Masks, dockerexec.Mask{Target: r.Path.String(), Vacant: true, Place: b.place(at, rest)})
	return true
}

// lookAt is lookAt below a mount.
func (b *builder) lookAt(at pathmap.Mount, rest string) (found, error) {
	if at.Container == policy.Home {
		return lookAt(b.home.fd, rest)
	}
	dir, err := openExactly(b.place(at, "."))
	if err != nil {
		return found{}, lookError(err)
	}
	defer unix.Close(dir)
	return lookAt(dir, rest)
}

// maxLinkNames is how many further names of hidden files are looked for.
const maxLinkNames = 1000

// place is a path of the host below a mount.
func (b *builder) place(at pathmap.Mount, rest string) string {
	return filepath.Join(b.service.real(at.Host), rest)
}

// links finds the further names that hidden files have in their mount. Only where there are any does it
// visit all of that.
func (b *builder) links(spec *dockerexec.Spec, at pathmap.Mount, hidden []string) error {
	root, err := openRoot(hostfs.Config{Dir: b.place(at, "."), UID: b.home.uid, GID: b.home.gid, Denied: hidden})
	if err != nil {
		return err
	}
	defer root.Close()
	links, err := root.DeniedLinks()
	if err != nil {
		return err
	}
	names, err := root.FindNames(links, maxLinkNames)
	if err != nil {
		return fmt.Errorf("cannot find the further names of hidden files: %w", err)
	}
	for _, name := range names {
		there, err := b.lookAt(at, name)
		if err != nil {
			return errs.Denied("cannot hide %q: %v", name, err)
		}
		spec.Links = append(spec.Links, dockerexec.Link{Target: path.Join(at.Container.String(), name), ID: there.id})
	}
	return nil
}
