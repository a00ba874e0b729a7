package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/pathmap"
)

// givenUp is where the paths of a call's restrictions lead.
type givenUp struct{ read, write []rootfs.Followed }

// follow replaces the paths of restrictions by what symbolic links make of them. What then belongs
// to the image is left out: it holds nothing of the user's.
func (p *Planner) follow(c *Call, given *policy.Restrictions) (all givenUp, err error) {
	for _, list := range []struct {
		field string
		paths *[]pathmap.ContainerPath
		all   *[]rootfs.Followed
	}{{"denyRead", &given.DenyRead, &all.read}, {"denyWrite", &given.DenyWrite, &all.write}} {
		var led []pathmap.ContainerPath
		for i, path := range *list.paths {
			to, err := p.rootfs.Follow(c.Paths, path)
			if err != nil {
				return givenUp{}, fmt.Errorf("%s[%d]: %w", list.field, i, err)
			}
			*list.all = append(*list.all, to)
			if len(to.Links) == 0 || !c.isImage(to.Path) {
				led = append(led, to.Path)
			}
		}
		*list.paths = led
	}
	return all, nil
}

// isImage reports whether a path is neither /tmp nor in or around a mount.
func (c *Call) isImage(path pathmap.ContainerPath) bool {
	return !path.Within(policy.Tmp) && !policy.Tmp.Within(path) &&
		!slices.ContainsFunc(c.Shown, func(m pathmap.Mount) bool {
			return path.Within(m.Container) || m.Container.Within(path)
		})
}

// kept returns the links that lead to what is given up. A call that may not write to a path must
// not be able to put another file there; for reading, what the link leads to is hidden whatever
// becomes of the link.
func (g givenUp) kept(p *Planner, c *Call, view policy.View) ([]policy.Symlink, error) {
	var links []policy.Symlink
	for i, to := range g.write {
		for _, link := range to.Links {
			for _, place := range p.rootfs.SamePlaces(c.Shown, []pathmap.ContainerPath{link.Path}) {
				if at, ok := view.At(place); ok && at.Mode == policy.Writable {
					return nil, errs.Denied(
						"denyWrite[%d]: the symbolic link %q could be replaced, because this call may write to %q: name what it leads to, %q, to keep that alone",
						i, link.Path, at.Path, to.Path)
				}
			}
		}
		links = p.appendShown(links, c, view, to.Links)
	}
	for _, to := range g.read {
		links = p.appendShown(links, c, view, to.Links)
	}
	slices.SortFunc(links, func(a, b policy.Symlink) int {
		return cmp.Or(cmp.Compare(a.Path.String(), b.Path.String()), cmp.Compare(a.Text, b.Text))
	})
	return slices.Compact(links), nil
}

// appendShown appends symbolic links at all places where the call sees them: nobody goes through
// the others.
func (p *Planner) appendShown(all []policy.Symlink, c *Call, view policy.View,
	links []policy.Symlink) []policy.Symlink {
	for _, link := range links {
		for _, place := range p.rootfs.SamePlaces(c.Shown, []pathmap.ContainerPath{link.Path}) {
			if at, ok := view.At(place); ok && at.Mode >= policy.ReadOnly {
				all = append(all, policy.Symlink{Path: place, Text: link.Text})
			}
		}
	}
	return all
}
