package policy

import (
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/pathmap"
)

// Mode is what a call may do with the paths of a region. A greater one allows more.
type Mode int

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

// Region is a path and all below it, down to the next region.
type Region struct {
	Path pathmap.ContainerPath
	Mode Mode
	// File says that a hidden path of the image is a file.
	File bool
	// Why is the reason, for a person.
	Why string
}

// View is the file system that a call sees, as regions. It does not change after it was made. Inside a
// container each region is a mount, and the file calls look their paths up here, so both follow one
// decision.
type View struct{ regions []Region }

// Regions are sorted by path, so that each comes after those that hold it.
func (v View) Regions() []Region { return v.regions }

// At is the region that decides about a path: the longest that holds it. There is none for a path that
// belongs to the image, or to nothing.
func (v View) At(p pathmap.ContainerPath) (Region, bool) {
	if p.IsZero() {
		return Region{}, false
	}
	for name := p.String(); ; name = parent(name) {
		if i, found := v.find(name); found {
			return v.regions[i], true
		}
		if name == "/" {
			return Region{}, false
		}
	}
}

// Around is the region that would decide about a region's path if that one were not.
func (v View) Around(p pathmap.ContainerPath) (Region, bool) {
	if p.String() == "/" {
		return Region{}, false
	}
	return v.At(mustPath(parent(p.String())))
}

// Holds says whether a region lies strictly below a path: then the path must not be renamed or
// removed, because the region belongs to its name.
func (v View) Holds(p pathmap.ContainerPath) (Region, bool) {
	for _, r := range v.regions {
		if r.Path != p && r.Path.Within(p) {
			return r, true
		}
	}
	return Region{}, false
}

// Pinned are the directories between a region that can be written and another below it. Whoever could
// rename one of them would carry what is below it to a name that no region guards, so each of them is
// made a mount of its own, which cannot be renamed. Sorted by path.
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

// HomeWritable says whether all of the home can be written, but for what is hidden.
func (v View) HomeWritable() bool {
	at, ok := v.At(Home)
	return ok && at.Mode == Writable
}

func (v View) find(name string) (int, bool) {
	return slices.BinarySearchFunc(v.regions, name, func(r Region, name string) int {
		return strings.Compare(r.Path.String(), name)
	})
}

func comparePaths(a, b pathmap.ContainerPath) int { return strings.Compare(a.String(), b.String()) }

// parent is the path above; that of the root is the root.
func parent(name string) string {
	return name[:max(strings.LastIndexByte(name, '/'), 1)]
}

// view makes the regions that grants come to. What is hidden or an app's stays so whatever is granted.
func (s Subject) view(g Grants) View {
	set := map[string]Region{}
	put := func(r Region) { set[r.Path.String()] = r }
	put(Region{Path: Home, Mode: ReadOnly, Why: "the home; no grant lets this call write to all of it"})
	put(Region{Path: Tmp, Mode: Writable, Why: "the user's own, always writable"})
	if s.HasSkills {
		put(Region{Path: Skills, Mode: ReadOnly, Why: "the user's skills"})
	}
	for _, path := range g.Read {
		s.grant(set, Region{Path: path, Mode: ReadOnly, Why: "granted by " + tagRead + path.String()})
	}
	if g.Workspace {
		s.grant(set, Region{Path: s.WorkingDir, Mode: Writable, Why: "the working directory, granted by " + TagWorkspace})
	}
	for _, path := range g.Write {
		s.grant(set, Region{Path: path, Mode: Writable, Why: "granted by " + tagWrite + path.String()})
	}
	for _, root := range s.appRoots() {
		put(Region{Path: root, Mode: Empty, Why: "apps are not shown to other agents"})
	}
	if !s.AppID.IsZero() {
		put(Region{Path: s.appDir(), Mode: ReadOnly, Why: "the app's own directory"})
		put(Region{Path: s.appData(), Mode: Writable, Why: "the app's own data"})
	}
	for _, r := range deniedRegions {
		put(r)
	}
	return s.simplified(set)
}

// grant adds a region unless it is one that no grant can open.
func (s Subject) grant(set map[string]Region, r Region) {
	for _, hidden := range deniedRegions {
		if r.Path.Within(hidden.Path) {
			return
		}
	}
	for _, root := range s.appRoots() {
		if r.Path.Within(root) && (s.AppID.IsZero() || !r.Path.Within(s.appData())) {
			return
		}
	}
	if target, ok := s.mountOf(r.Path); !ok || (r.Mode == Writable && target.ReadOnly) {
		return
	}
	if set[r.Path.String()].Mode < r.Mode {
		set[r.Path.String()] = r
	}
}

// mountOf is the mount that shows a path, the nearest one.
func (s Subject) mountOf(p pathmap.ContainerPath) (Mount, bool) {
	best, found := Mount{}, false
	consider := func(m Mount) {
		if p.Within(m.Target) && (!found || len(m.Target.String()) > len(best.Target.String())) {
			best, found = m, true
		}
	}
	consider(Mount{Target: Home})
	consider(Mount{Target: Tmp})
	if s.HasSkills {
		consider(Mount{Target: Skills, ReadOnly: true})
	}
	for _, m := range s.Mounts {
		consider(m)
	}
	return best, found
}

// simplified sorts the regions and leaves out those that change nothing: what a grant names is often
// in what another one names.
func (s Subject) simplified(set map[string]Region) View {
	all := make([]Region, 0, len(set))
	for _, r := range set {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Region) int { return comparePaths(a.Path, b.Path) })
	v := View{regions: make([]Region, 0, len(all))}
	for _, r := range all {
		around, ok := v.Around(r.Path)
		if ok && s.sameMount(around.Path, r.Path) && redundant(around, r) {
			continue
		}
		v.regions = append(v.regions, r)
	}
	return v
}

// redundant: a grant never takes anything away, so reading is nothing new where one may write.
func redundant(around, r Region) bool {
	switch r.Mode {
	case ReadOnly:
		return around.Mode == ReadOnly || (around.Mode == Writable && strings.HasPrefix(r.Why, "granted by "))
	default:
		return around.Mode == r.Mode
	}
}

func (s Subject) sameMount(a, b pathmap.ContainerPath) bool {
	of, _ := s.mountOf(a)
	other, _ := s.mountOf(b)
	return of == other
}
