package pathmap

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
)

// Mount says that the container shows the directory or file Host at Container.
type Mount struct {
	Host      HostPath
	Container ContainerPath
}

// Map translates paths over a list of mounts. It does not change after New, and any number of
// goroutines may use it. The zero value has no mounts, so no path maps.
//
// Locate(Parse(h)) is h for every host path h that maps. Parse(Locate(c)) is c for every container
// path c that maps, with one exception that is in the nature of mounts: when the mounts show a host
// path at two places, it has two names. Locate leads from both to it, and Parse always returns the
// same one of them: the one under the longest host mount and, where one host path is mounted twice,
// under the container path that sorts first.
type Map struct {
	// byHost is in the order in which Parse prefers mounts, byContainer in that of Locate.
	byHost, byContainer []Mount
}

// New returns the Map of mounts, whose order does not matter. The error, of class
// ErrInvalidArgument, names each zero path and each container path that has two mounts.
func New(mounts ...Mount) (Map, error) {
	var faults []error
	seen := make(map[ContainerPath]bool, len(mounts))
	for i, m := range mounts {
		switch {
		case m.Host.IsZero() || m.Container.IsZero():
			faults = append(faults, fmt.Errorf("cannot use mount %d: it has an empty path: %w",
				i, errdefs.ErrInvalidArgument))
		case seen[m.Container]:
			faults = append(faults, fmt.Errorf("cannot mount twice at %q: %w",
				m.Container, errdefs.ErrInvalidArgument))
		}
		seen[m.Container] = true
	}
	if len(faults) > 0 {
		return Map{}, errors.Join(faults...)
	}

	// Of two mounts that hold one path, the longer is the nested one; so sorting by length is
	// enough.
	byHost, byContainer := slices.Clone(mounts), slices.Clone(mounts)
	slices.SortFunc(byHost, func(a, b Mount) int {
		return cmp.Or(
			cmp.Compare(len(b.Host.name), len(a.Host.name)),
			cmp.Compare(a.Host.name, b.Host.name),
			cmp.Compare(a.Container.name, b.Container.name),
		)
	})
	slices.SortFunc(byContainer, func(a, b Mount) int {
		return cmp.Compare(len(b.Container.name), len(a.Container.name))
	})
	return Map{byHost: byHost, byContainer: byContainer}, nil
}

// inside returns the container path of a host path. There is none if no mount shows the path,
// another mount covers it, or the result would be longer than MaxLen.
func (m Map) inside(host string) (ContainerPath, bool) {
	for _, mount := range m.byHost {
		rest, ok := CutDir(host, mount.Host.name)
		if !ok {
			continue
		}
		name := ContainerPath{join(mount.Container.name, rest)}
		if at, _, ok := m.find(name); ok && at == mount && len(name.name) <= MaxLen {
			return name, true
		}
	}
	return ContainerPath{}, false
}

// Parse returns the container path for an absolute path that a caller wrote: a container path, or a
// host path that a mount shows. The error is that of ParseContainer.
func (m Map) Parse(written string) (ContainerPath, error) {
	path, err := ParseContainer(written)
	if err != nil {
		return path, err // it is no host path either
	}
	return m.Inside(path), nil
}

// Inside returns the container path of what may be a host path that a mount shows; any other path
// is returned as it is.
func (m Map) Inside(path ContainerPath) ContainerPath {
	if inside, ok := m.inside(path.name); ok {
		return inside
	}
	return path
}

// Locate returns the mount that shows p, and the path of p below it, relative and clean; "." is the
// mount itself. The error is of class ErrNotFound when p is under no mount, and ErrInvalidArgument
// when p is zero.
func (m Map) Locate(p ContainerPath) (Mount, string, error) {
	if p.IsZero() {
		return Mount{}, "", containerFault("", "is empty")
	}
	mount, rest, ok := m.find(p)
	if !ok {
		return Mount{}, "", unmapped(p)
	}
	return mount, cmp.Or(rest, "."), nil
}

// find resolves a name as the kernel does: the mount nearest to it wins, and hides what the others
// have there.
func (m Map) find(p ContainerPath) (Mount, string, bool) {
	for _, mount := range m.byContainer {
		if rest, ok := CutDir(p.name, mount.Container.name); ok {
			return mount, rest, true
		}
	}
	return Mount{}, "", false
}

func unmapped(p ContainerPath) error {
	return fmt.Errorf("cannot find path %s: no mount holds it: %w", shown(p.name),
		errdefs.ErrNotFound)
}
