package rootfs

import (
	"errors"
	"fmt"
	"path"
	"slices"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// mask returns the mask that hides a region. In a home or a further mount, something must exist on
// the host to mount it on. Where nothing is and no command of the container can change that, nothing
// is mounted.
func (b *builder) mask(r policy.Region) (dockerexec.Mask, error) {
	m := dockerexec.Mask{Target: r.Path.String(), Listable: r.Mode == policy.Empty,
		Holds: b.mountPointsIn(r)}
	at, rest, err := b.Paths.Locate(r.Path)
	if err != nil { // it belongs to the image
		m.File, m.Listable = r.File, r.File
		return m, nil
	}
	state, err := b.stateOf(at, rest)
	if err != nil {
		return m, errs.Denied("cannot hide %q: %v", r.Path, err)
	}
	if state.file && !r.File {
		state.closed = false // it is somebody's: no file stands in there
	}
	if below, err := b.isBelowFile(at, rest, state); below || err != nil {
		m.Absent = true
		return m, err
	}
	if r.Mode == policy.Hidden && state.isVacant() {
		m.Absent = b.isAbsent(r, at, rest, state)
	} else {
		m.Absent = !state.exists && b.disk(at, rest).readOnly
	}
	if m.Absent {
		return m, nil
	}
	m.File = state.file || !state.exists && r.File
	m.Listable = m.Listable || m.File && r.File
	m.Vacant = r.GivenUp && state.isVacant()
	m.Place, m.ID = b.hostPath(at, rest), state.maskedBy(m)
	if state.exists && !state.empty && !r.NoParents {
		b.secrets[at] = append(b.secrets[at], rest)
	}
	return m, nil
}

// isAbsent reports whether nothing has to stand in at a vacant path that is to be hidden. The watch
// ends the container when something comes to exist there; where there may be no watch, something
// stands in for what the deny list hides.
func (b *builder) isAbsent(r policy.Region, at pathmap.Mount, rest string, state pathState) bool {
	around, ok := b.Decision.View.Around(r.Path)
	switch {
	case !state.exists && b.disk(at, rest).readOnly:
		return true
	case ok && around.Mode == policy.Writable:
		return false
	default:
		return r.GivenUp || !b.Detached && b.disk(at, rest).heard
	}
}

// canBeThere reports whether a directory for which no others are made can be there: the one that it
// is in exists, none of them is a link, and nothing else is in its place. A command can make what it
// likes there before the directory is hidden, and must not keep the user's calls from running by
// that. So further names of what is in it are not looked for, either.
func (b *builder) canBeThere(p pathmap.ContainerPath) bool {
	at, rest, err := b.Paths.Locate(p)
	if err != nil {
		return true
	}
	if it, err := b.stateOf(at, rest); cerrdefs.IsPermissionDenied(err) || it.file {
		return false
	}
	above, err := b.stateOf(at, path.Dir(rest))
	return err != nil || above.exists && !above.file
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

// disk is what a mount's file system is like: readOnly means that nothing can appear in it, and
// heard that the watch hears of all that does.
type disk struct{ readOnly, heard bool }

// localDisks are the types of file systems that are this host's alone, as statfs(2) has them; the
// last two are those of ZFS and bcachefs. On others, inotify does not tell what another host does.
var localDisks = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC,
	unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC, 0x2fc12fc1, 0xca451a4e}

// disk returns what the nearest directory above a path is on. It asks once for each.
func (b *builder) disk(at pathmap.Mount, rest string) disk {
	dir := b.hostPath(at, path.Dir(rest))
	known, is := b.disks[dir]
	if is {
		return known
	}
	var st unix.Statfs_t
	switch err := unix.Statfs(dir, &st); {
	case err == nil:
		known = disk{readOnly: st.Flags&unix.ST_RDONLY != 0,
			heard: slices.Contains(localDisks, st.Type)}
	case errors.Is(err, unix.ENOENT) && path.Dir(rest) != ".":
		known = b.disk(at, path.Dir(rest))
	}
	b.disks[dir] = known
	return known
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
	if err != nil || state.file || !state.isVacant() {
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

// holdsMount reports whether something is mounted below a path.
func (b *builder) holdsMount(path pathmap.ContainerPath) bool {
	isBelow := func(target string) bool {
		return target != path.String() && pathmap.Within(target, path.String())
	}
	return slices.ContainsFunc(b.spec.Mounts, func(m dockerexec.Mount) bool {
		return isBelow(m.Target)
	}) || slices.ContainsFunc(b.spec.Masks, func(m dockerexec.Mask) bool {
		return !m.Absent && isBelow(m.Target)
	})
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
