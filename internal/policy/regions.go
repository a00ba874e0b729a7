package policy

import (
	"cmp"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/pathmap"
)

// view returns the regions that result from grants. What is hidden or an app's stays so, whatever
// is granted.
func (s Subject) view(g Grants) View {
	all := make([]Region, 0, len(g.Read)+len(g.Write)+len(s.AppRoots)+8+len(deniedRegions()))
	all = append(all,
		Region{Path: Home, Mode: ReadOnly, from: ground,
			Why: "the home; no grant lets this call write to all of it"},
		Region{Path: Tmp, Mode: Writable, from: ground, Why: "the user's own, always writable"})
	if s.HasSkills {
		all = append(all, Region{Path: Skills, Mode: ReadOnly, from: ground,
			Why: "the user's skills"})
	}
	for _, path := range g.Read {
		all = s.grant(all, Region{Path: path, Mode: ReadOnly,
			Why: "granted by " + TagRead + path.String()})
	}
	if g.Workspace {
		all = s.grant(all, Region{Path: s.WorkingDir, Mode: Writable,
			Why: "the working directory, granted by " + TagWorkspace})
	}
	for _, path := range g.Write {
		all = s.grant(all, Region{Path: path, Mode: Writable,
			Why: "granted by " + TagWrite + path.String()})
	}
	for _, root := range s.appRoots() {
		all = append(all, Region{Path: root, Mode: Empty, from: ruled,
			Why: "apps are not shown to other agents"})
	}
	if !s.AppID.IsZero() {
		all = append(all,
			Region{Path: s.appDir(), Mode: ReadOnly, from: ruled, Why: "the app's own directory"},
			Region{Path: s.appData(), Mode: Writable, from: ruled, Why: "the app's own data"})
	}
	return s.simplified(append(all, deniedRegions()...))
}

// grant adds a region if a mount shows its path with that mode.
func (s Subject) grant(all []Region, r Region) []Region {
	if target, ok := s.mountOf(r.Path); !ok || (r.Mode == Writable && target.ReadOnly) {
		return all
	}
	return append(all, r)
}

// mountOf returns the nearest mount that shows a path.
func (s Subject) mountOf(p pathmap.ContainerPath) (best Mount, found bool) {
	switch {
	case p.Within(Home):
		best, found = Mount{Target: Home}, true
	case p.Within(Tmp):
		best, found = Mount{Target: Tmp}, true
	case s.HasSkills && p.Within(Skills):
		best, found = Mount{Target: Skills, ReadOnly: true}, true
	}
	for _, m := range s.Mounts {
		if len(m.Target.String()) > len(best.Target.String()) && p.Within(m.Target) {
			best, found = m, true
		}
	}
	return best, found
}

// simplified sorts the regions, and leaves out those that are not allowed or change nothing: the
// path of one grant often lies in that of another.
func (s Subject) simplified(all []Region) View {
	sorted := make([]*Region, len(all)) // they are large to move
	for i := range all {
		sorted[i] = &all[i]
	}
	slices.SortFunc(sorted, compareRegions)
	v := View{regions: make([]Region, 0, len(all))}
	for i, r := range sorted {
		if i+1 < len(all) && sorted[i+1].Path == r.Path {
			continue
		}
		if r.Mode == Hidden || s.adds(v, r) {
			v.regions = append(v.regions, *r)
		}
	}
	return v
}

// compareRegions sorts by path. Of several regions with one path, the last one counts: the rule
// that allows least, or else the grant that allows most, in whatever order they were asked for.
func compareRegions(a, b *Region) int {
	if c := comparePaths(a.Path, b.Path); c != 0 {
		return c
	}
	switch {
	case a.from == ruled && b.from == ruled:
		return cmp.Compare(b.Mode, a.Mode)
	case a.from == ruled || b.from == ruled:
		return cmp.Compare(a.from, b.from)
	}
	return cmp.Or(cmp.Compare(a.Mode, b.Mode), cmp.Compare(a.from, b.from),
		strings.Compare(a.Why, b.Why))
}

// adds reports whether a region may be where it is and changes something there. v has the regions
// around it.
func (s Subject) adds(v View, r *Region) bool {
	around := v.above(r.Path)
	return around == nil || (!s.closed(around, r) &&
		(!redundant(around, r) || !s.sameMount(around.Path, r.Path)))
}

// closed reports whether a region must not be opened where it is: it lies in something hidden, or
// in a directory of apps and is not this sandbox's app, or is a grant inside something that no
// grant opens.
func (s Subject) closed(around, r *Region) bool {
	switch {
	case around.Mode == Hidden:
		return true
	case around.Mode == Empty && r.Mode > Empty:
		return r.from != ruled || around.Path != s.AppRoot()
	default:
		return around.from == ruled && r.from == granted
	}
}

// redundant reports whether a region changes nothing. A grant takes nothing away, so reading is
// nothing new where one may write.
func redundant(around, r *Region) bool {
	switch r.Mode {
	case ReadOnly:
		return around.Mode == ReadOnly || (around.Mode == Writable && r.from == granted)
	default:
		return around.Mode == r.Mode
	}
}

func (s Subject) sameMount(a, b pathmap.ContainerPath) bool {
	of, _ := s.mountOf(a)
	other, _ := s.mountOf(b)
	return of == other
}
