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
// Locate(ToContainer(h)) is h for every host path h that maps. ToContainer(Locate(c)) is c for every
// container path c that maps, with one exception that is in the nature of mounts: when the mounts show
// a host path at two places, it has two names. Both lead Locate to it, and ToContainer answers one of
// them, always the same: the one under the longest host mount, and where one host path is mounted
// twice, under the container path that sorts first.
type Map struct {
	// byHost is ordered by preference of ToContainer, byContainer by that of Locate.
	byHost, byContainer []Mount
}

// Error is an error about a host path. Its text does not hold the path, so it may go to the caller.
type Error struct {
	// Host is the host path as it was given, for logs only.
	Host string
	err  error
}

func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the error's class.
func (e *Error) Unwrap() error { return e.err }

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

	// Of two mounts that hold one path, the longer is the nested one; so longest first is enough.
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

// ToContainer returns the name that the container has for a host path. The error is an *Error: of
// class ErrNotFound when no mount shows the path, which includes a path that lies under a mount but is
// covered by another one, and ErrInvalidArgument when p is zero or its name inside would be longer
// than MaxLen.
func (m Map) ToContainer(p HostPath) (ContainerPath, error) {
	if p.IsZero() {
		return ContainerPath{}, hostFault(p, "the path is empty", errdefs.ErrInvalidArgument)
	}
	name, covered, tooLong := m.inside(p)
	switch {
	case !name.IsZero():
		return name, nil
	case tooLong:
		return ContainerPath{}, hostFault(p, fmt.Sprintf("its name would have more than %d bytes", MaxLen),
			errdefs.ErrInvalidArgument)
	case covered:
		return ContainerPath{}, hostFault(p, "another mount covers it", errdefs.ErrNotFound)
	}
	return ContainerPath{}, hostFault(p, "no mount shows it", errdefs.ErrNotFound)
}

// inside returns the name that the container has for a host path, or zero and whether mounts that hold it are covered
// by others, or give it a name that is too long.
func (m Map) inside(p HostPath) (name ContainerPath, covered, tooLong bool) {
	for _, mount := range m.byHost {
		rest, ok := CutDir(p.name, mount.Host.name)
		if !ok {
			continue
		}
		name := ContainerPath{join(mount.Container.name, rest)}
		if at, _, ok := m.find(name); !ok || at != mount {
			covered = true
			continue
		}
		if len(name.name) > MaxLen {
			tooLong = true
			continue
		}
		return name, false, false
	}
	return ContainerPath{}, covered, tooLong
}

// Parse returns the path inside that a caller has written as an absolute path: inside, or on the host where a
// mount shows it. The error is that of ParseContainer.
func (m Map) Parse(written string) (ContainerPath, error) {
	path, err := ParseContainer(written)
	if err != nil {
		return path, err // it is no host path either
	}
	if inside, _, _ := m.inside(HostPath(path)); !inside.IsZero() {
		return inside, nil
	}
	return path, nil
}

// Locate returns the mount that shows p and the path of p below it, relative and clean; "." is the
// mount itself. The error is of class
// ErrNotFound when p is under no mount, and ErrInvalidArgument when p is zero.
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

// find is what the kernel does with a name: the mount nearest to it wins, and hides what the others
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
	return fmt.Errorf("cannot find path %s: no mount holds it: %w", shown(p.name), errdefs.ErrNotFound)
}

func hostFault(p HostPath, why string, class error) error {
	return &Error{
		Host: p.name,
		err:  fmt.Errorf("cannot map a host path into the container: %s: %w", why, class),
	}
}
