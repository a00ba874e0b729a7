package policy

import (
	"slices"
	"sort"
	"strings"

	"github.com/daycare-run/sandbox/pathmap"
)

// Mode is what a call may do with the paths of a region. A greater mode allows more.
type Mode uint8

// The modes.
const (
	Hidden   Mode = iota // neither read nor written, whatever is or will be there
	Empty                // an empty directory that nothing can be put into
	ReadOnly             // read
	Writable             // read and written
)

func (m Mode) String() string {
	return [...]string{"hidden", "empty", "readOnly", "writable"}[m]
}

// Region is a path and everything below it, down to the next region.
type Region struct {
	Path pathmap.ContainerPath
	Mode Mode
	// File says that a file is expected at a hidden path, and that an empty one does for it.
	File bool
	// NoParents says that the path is hidden only where the directory that it is in exists.
	NoParents bool
	// GivenUp says that the call itself gives the path up: where nothing is, there is nothing to
	// hide.
	GivenUp bool
	from    origin
	// Why is the reason, for a person.
	Why string
}

// origin says why a region is there.
type origin uint8

const (
	granted origin = iota // the call asked for it
	ground                // every call has it
	ruled                 // the deny list or the isolation of apps says so, and no grant opens what is in it
)

// Granted reports whether the region is there because the call asked for it.
func (r Region) Granted() bool { return r.from == granted }

// View is the file system that a call sees, as regions. It is immutable. Inside a container each
// region is a mount, and the file calls look their paths up here, so both follow one decision.
type View struct{ regions []Region }

// Regions returns the regions sorted by path, so that each comes after those that hold it.
func (v View) Regions() []Region { return v.regions }

// At returns the region that decides about a path: the longest that holds it. There is none for a
// path that belongs to the image, or to nothing.
func (v View) At(p pathmap.ContainerPath) (Region, bool) { return found(v.at(p.String())) }

// Around returns the region that would decide about a region's path if that region did not exist.
func (v View) Around(p pathmap.ContainerPath) (Region, bool) { return found(v.above(p)) }

func found(r *Region) (Region, bool) {
	if r == nil {
		return Region{}, false
	}
	return *r, true
}

func (v View) allows(p pathmap.ContainerPath, mode Mode) bool {
	at := v.at(p.String())
	return at != nil && at.Mode >= mode
}

func (v View) above(p pathmap.ContainerPath) *Region {
	if len(p.String()) <= 1 {
		return nil
	}
	return v.at(parent(p.String()))
}

func (v View) at(name string) *Region {
	for name != "" {
		if i, ok := v.find(name); ok {
			return &v.regions[i]
		}
		if name == "/" {
			break
		}
		name = parent(name)
	}
	return nil
}

// Holds reports whether a region lies strictly below a path: then the path must not be renamed or
// removed, because the region belongs to its name.
func (v View) Holds(p pathmap.ContainerPath) (Region, bool) {
	for _, r := range v.regions {
		if r.Path != p && r.Path.Within(p) {
			return r, true
		}
	}
	return Region{}, false
}

// Pinned returns the directories between a writable region and another region below it, sorted by
// path. Whoever could rename one of them would carry what is below it to a name that no region
// guards, so each is made a mount of its own, which cannot be renamed.
func (v View) Pinned() []pathmap.ContainerPath {
	var pinned []pathmap.ContainerPath
	for _, r := range v.regions {
		around, ok := v.Around(r.Path)
		if !ok || around.Mode != Writable {
			continue
		}
		for name := parent(r.Path.String()); name != around.Path.String(); name = parent(name) {
			pinned = append(pinned, mustPath(name))
		}
	}
	slices.SortFunc(pinned, comparePaths)
	return slices.Compact(pinned)
}

// HomeWritable reports whether all of the home can be written, except what is hidden.
func (v View) HomeWritable() bool {
	at, ok := v.At(Home)
	return ok && at.Mode == Writable
}

func (v View) find(name string) (int, bool) {
	return sort.Find(len(v.regions), func(i int) int {
		return strings.Compare(name, v.regions[i].Path.String())
	})
}

func comparePaths(a, b pathmap.ContainerPath) int { return strings.Compare(a.String(), b.String()) }

// parent returns the path above; the root's parent is the root.
func parent(name string) string {
	return name[:max(strings.LastIndexByte(name, '/'), 1)]
}
