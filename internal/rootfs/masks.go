package rootfs

import (
	"fmt"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// mask returns the mask that hides a region. In a home or a further mount, something must exist on
// the host to mount it on.
func (b *builder) mask(r policy.Region) (dockerexec.Mask, error) {
	m := dockerexec.Mask{Target: r.Path.String(), Listable: r.Mode == policy.Empty,
		Holds: b.mountPointsIn(r)}
	at, rest, err := b.Paths.Locate(r.Path)
	if err != nil { // it belongs to the image
		m.File = r.File
		return m, nil
	}
	state, err := b.stateOf(at, rest)
	if err != nil {
		return m, errs.Denied("cannot hide %q: %v", r.Path, err)
	}
	if below, err := b.isBelowFile(at, rest, state); below || err != nil {
		m.Absent = true
		return m, err
	}
	if r.GivenUp && state.isVacant() {
		around, ok := b.Decision.View.Around(r.Path)
		if m.Vacant = ok && around.Mode == policy.Writable; m.Vacant {
			m.Place = b.hostPath(at, rest)
		}
		m.Absent = !m.Vacant
		return m, nil
	}
	m.File, m.ID = state.file, state.maskedBy(m)
	if m.Absent = !state.exists && b.isReadOnly(at); !m.Absent {
		m.Place = b.hostPath(at, rest)
	}
	if state.exists && !state.empty {
		b.secrets[at] = append(b.secrets[at], rest)
	}
	return m, nil
}

// mountPointsIn returns the mount points in a region that is masked, relative to it.
func (b *builder) mountPointsIn(r policy.Region) (names []string) {
	for _, inner := range b.Decision.View.Regions() {
		rest, below := pathmap.CutDir(inner.Path.String(), r.Path.String())
		if !below || inner.Mode < policy.ReadOnly {
			continue
		}
		if around, ok := b.Decision.View.Around(inner.Path); ok && around.Path == r.Path {
			names = append(names, rest)
		}
	}
	return names
}

// isReadOnly reports whether a mount's file system is read-only, so that nothing can appear in it.
// It checks each mount once: most masks are in one mount.
func (b *builder) isReadOnly(at pathmap.Mount) bool {
	is, known := b.readOnly[at]
	if !known {
		var st unix.Statfs_t
		is = unix.Statfs(b.hostPath(at, "."), &st) == nil && st.Flags&unix.ST_RDONLY != 0
		b.readOnly[at] = is
	}
	return is
}

// addVacant adds a mask for a read-only region in a writable one, if nothing is there. It returns
// false for all other regions, which are mounted.
func (b *builder) addVacant(r policy.Region) (bool, error) {
	around, ok := b.Decision.View.Around(r.Path)
	if !ok || around.Mode != policy.Writable {
		return false, nil
	}
	at, rest, err := b.Paths.Locate(r.Path)
	if err != nil {
		return false, nil
	}
	state, err := b.stateOf(at, rest)
	if err != nil || !state.isVacant() {
		return false, nil // including what cannot be looked at: mounting it is refused
	}
	m := dockerexec.Mask{Target: r.Path.String(), Vacant: true, Place: b.hostPath(at, rest)}
	if below, err := b.isBelowFile(at, rest, state); below || err != nil {
		if err != nil {
			return false, err
		}
		m = dockerexec.Mask{Target: r.Path.String(), Absent: true}
	}
	b.spec.Masks = append(b.spec.Masks, m)
	return true, nil
}

// isBelowFile reports whether nothing can be at a path because a component of it is a file. Where
// the call may write around that file, it gets a read-only mount, which cannot be replaced by a
// directory.
func (b *builder) isBelowFile(at pathmap.Mount, rest string, state pathState) (bool, error) {
	if state.exists {
		return false, nil
	}
	for above := path.Dir(rest); above != "."; above = path.Dir(above) {
		switch it, err := b.stateOf(at, above); {
		case err != nil:
			return false, errs.Denied("cannot hide what is in %q: %v", above, err)
		case it.file:
			return true, b.keepFile(at, above)
		case it.exists:
			return false, nil
		}
	}
	return false, nil
}

// keepFile keeps a file from being replaced.
func (b *builder) keepFile(at pathmap.Mount, rest string) error {
	target, err := at.Container.Resolve("./" + rest)
	if err != nil || slices.Contains(b.files, target) {
		return err
	}
	b.files = append(b.files, target)
	around, ok := b.Decision.View.At(target)
	if !ok || around.Mode != policy.Writable || around.Path == target {
		return nil // it cannot be replaced anyway
	}
	mount, err := b.mount(policy.Region{Path: target, Mode: policy.ReadOnly})
	b.spec.Mounts = append(b.spec.Mounts, mount)
	return err
}

// isInFile reports whether a path is, or is below, a file that keeps what a call gives up from
// coming to exist.
func (b *builder) isInFile(path pathmap.ContainerPath) bool {
	return slices.ContainsFunc(b.files, path.Within)
}

// stateOf is emptyDirs.stateOf for a path below a mount.
func (b *builder) stateOf(at pathmap.Mount, rest string) (pathState, error) {
	if at.Container == policy.Home {
		return b.home.planner.empty.stateOf(b.home.fd, rest)
	}
	dir, err := openNoFollow(b.hostPath(at, "."))
	if err != nil {
		return pathState{}, stateError(err)
	}
	defer unix.Close(dir)
	return b.home.planner.empty.stateOf(dir, rest)
}

// maxLinkNames is how many further names of hidden files are looked for.
const maxLinkNames = 1000

// addLinks adds the further names that hidden files have in their mount. The whole mount is visited
// only if there are such files.
func (b *builder) addLinks(at pathmap.Mount, hidden []string) error {
	root, err := openRoot(b.home.inDir(b.hostPath(at, "."), hidden))
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
		state, err := b.stateOf(at, name)
		if err != nil {
			return errs.Denied("cannot hide %q: %v", name, err)
		}
		b.spec.Links = append(b.spec.Links,
			dockerexec.Link{Target: path.Join(at.Container.String(), name), ID: state.id})
	}
	return nil
}

// linkDirs returns the directories that hold further names of hidden files, could be renamed, and
// are not mounts anyway.
func linkDirs(spec dockerexec.Spec) []string {
	mounted := map[string]bool{}
	for _, m := range spec.Mounts {
		mounted[m.Target] = true
	}
	for _, pin := range spec.Pins {
		mounted[pin.Target] = true
	}
	var dirs []string
	for _, link := range spec.Links {
		for dir := path.Dir(link.Target); isWritable(spec, dir) &&
			!mounted[dir]; dir = path.Dir(dir) {
			mounted[dir] = true
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// isWritable reports whether the nearest mount of a Spec that holds a path is writable.
func isWritable(spec dockerexec.Spec, target string) bool {
	var nearest dockerexec.Mount
	for _, m := range spec.Mounts {
		if pathmap.Within(target, m.Target) && len(m.Target) > len(nearest.Target) {
			nearest = m
		}
	}
	return nearest.Target != "" && !nearest.ReadOnly
}
