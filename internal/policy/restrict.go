package policy

import (
	"errors"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/pathmap"
)

// maxRestrictions is how many entries each list of a call's restrictions may have.
const maxRestrictions = 64

// maxDepth is how many components a path of a call's restrictions may have: each of its directories
// is watched.
const maxDepth = 24

// Restrictions are what a call gives up of what it would otherwise see. They take precedence over
// every grant, and the zero value gives up nothing.
type Restrictions struct {
	// DenyRead can be neither read nor written, and DenyWrite cannot be written, with everything
	// below.
	DenyRead, DenyWrite []pathmap.ContainerPath
}

// ParseRestrictions parses the paths of a call's restrictions, as ParseTags does those of tags. All
// faults come in one error, of class ErrInvalidArgument, each with its field and index.
func ParseRestrictions(denyRead, denyWrite []string, paths pathmap.Map) (Restrictions, error) {
	var r Restrictions
	var faults []error
	for _, list := range []struct {
		field string
		from  []string
		to    *[]pathmap.ContainerPath
	}{{"denyRead", denyRead, &r.DenyRead}, {"denyWrite", denyWrite, &r.DenyWrite}} {
		if len(list.from) > maxRestrictions {
			faults = append(faults, tooMany(list.field, list.from, maxRestrictions))
			continue
		}
		for i, written := range list.from {
			path, err := paths.Parse(written)
			if err != nil {
				faults = append(faults, errs.Invalid("%s[%d]: %v", list.field, i, err))
			} else if depth := strings.Count(path.String(), "/"); depth > maxDepth {
				faults = append(faults,
					errs.Invalid("%s[%d]: %q has %d components; at most %d are allowed", list.field,
						i, path, depth, maxDepth))
			}
			*list.to = append(*list.to, path)
		}
	}
	if len(faults) > 0 {
		return Restrictions{}, errors.Join(faults...)
	}
	return r, nil
}

func tooMany(field string, list []string, limit int) error {
	return errs.Invalid("%s has %d entries; at most %d are allowed", field, len(list), limit)
}

// Restrict removes from a view what a call gives up. A path that no view could hide or make
// read-only is an error of class ErrInvalidArgument; all faults come in one error.
func (s Subject) Restrict(v View, r Restrictions) (View, error) {
	var faults []error
	for i, path := range r.DenyRead {
		if why := s.whyNotRestricted(v, path); why != "" {
			faults = append(faults, errs.Invalid("denyRead[%d]: %q %s", i, path, why))
		} else if s.WorkingDir.Within(path) {
			faults = append(faults,
				errs.Invalid(
					"denyRead[%d]: %q holds the working directory %s, without which no command can run",
					i, path, s.WorkingDir))
		}
	}
	for i, path := range r.DenyWrite {
		if why := s.whyNotRestricted(v, path); why != "" {
			faults = append(faults, errs.Invalid("denyWrite[%d]: %q %s", i, path, why))
		}
	}
	if len(faults) > 0 {
		return View{}, errors.Join(faults...)
	}
	return hide(s.protect(v, r.DenyWrite), r.DenyRead), nil
}

// whyNotRestricted returns why a view cannot decide about a path, or "" if it can.
func (s Subject) whyNotRestricted(v View, path pathmap.ContainerPath) string {
	if path.Within(Tmp) || Tmp.Within(path) {
		return "is, or holds, a part of /tmp, which every call may read and write"
	}
	_, decided := v.At(path)
	holdsMount := slices.ContainsFunc(s.Mounts, func(m Mount) bool { return m.Target.Within(path) })
	if decided || holdsMount || (s.HasSkills && Skills.Within(path)) || s.inMount(path) {
		return ""
	}
	return "is in no mount of this sandbox; the image's own files hold nothing of the user's, and stay as they are"
}

// protect makes paths read-only, with all regions in them.
func (s Subject) protect(v View, paths []pathmap.ContainerPath) View {
	if len(paths) == 0 {
		return v
	}
	const why = "read-only by this call's denyWrite"
	kept := View{regions: make([]Region, 0, len(v.regions)+len(paths))}
	for _, r := range v.regions {
		if r.Mode == Writable && slices.ContainsFunc(paths, r.Path.Within) {
			r.Mode, r.Why = ReadOnly, why
			if around := kept.above(r.Path); around != nil && around.Mode == ReadOnly &&
				s.sameMount(around.Path, r.Path) {
				continue // the region around it does the same
			}
		}
		kept.regions = append(kept.regions, r)
	}
	for _, path := range sortedPaths(paths) {
		if at := kept.at(path.String()); at != nil && at.Mode == Writable {
			kept.insert(Region{Path: path, Mode: ReadOnly, GivenUp: true, from: ruled, Why: why})
		}
	}
	return kept
}

// hide removes what is at paths, with all regions in them. A path that is hidden anyway keeps its
// reason.
func hide(v View, paths []pathmap.ContainerPath) View {
	paths = slices.DeleteFunc(slices.Clone(paths), func(path pathmap.ContainerPath) bool {
		at := v.at(path.String())
		return at != nil && at.Mode == Hidden
	})
	if len(paths) == 0 {
		return v
	}
	kept := View{regions: make([]Region, 0, len(v.regions)+len(paths))}
	for _, r := range v.regions {
		if !slices.ContainsFunc(paths, r.Path.Within) {
			kept.regions = append(kept.regions, r)
		}
	}
	for _, path := range sortedPaths(paths) {
		// Where nothing around it is shown, it is not shown either.
		if at := kept.at(path.String()); at != nil && at.Mode >= ReadOnly {
			kept.insert(Region{Path: path, Mode: Hidden, GivenUp: true, from: ruled,
				Why: "hidden by this call's denyRead"})
		}
	}
	return kept
}

// insert adds a region at a path that has none.
func (v *View) insert(r Region) {
	i, _ := v.find(r.Path.String())
	v.regions = slices.Insert(v.regions, i, r)
}

func sortedPaths(paths []pathmap.ContainerPath) []pathmap.ContainerPath {
	return slices.Compact(slices.SortedFunc(slices.Values(paths), comparePaths))
}
