package files

import (
	"context"
	"fmt"
	"strconv"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// fileTarget is a path that a file call names. Policy allows it and its mount was found on the
// host, but the file itself was not looked at yet: that goes through root and name.
type fileTarget struct {
	asked pathmap.ContainerPath // as the caller named it
	path  pathmap.ContainerPath // where the links in it lead
	view  policy.View
	at    policy.Region
	base  pathmap.ContainerPath // of root
	root  *hostfs.Root          // nil before it is opened
	name  string                // below root
	host  string                // of root
	user  string
	paths pathmap.Map
	free  func() // releases what keeps root's directory; nil for nothing
}

func (t *fileTarget) close() {
	if t.root != nil {
		_ = t.root.Close()
	}
	if t.free != nil {
		t.free()
	}
	t.root, t.free = nil, nil
}

// hostPath returns the path on the host.
func (t *fileTarget) hostPath() string {
	if t.name == "." {
		return t.host
	}
	return t.host + "/" + t.name
}

// display returns the path as agents name it: ~/… in the home.
func display(path pathmap.ContainerPath) string {
	rest, inHome := pathmap.CutDir(path.String(), policy.Home.String())
	switch {
	case !inHome:
		return path.String()
	case rest == "":
		return "~"
	}
	return "~/" + rest
}

// accessCheck is what a file call requires of a path.
type accessCheck struct {
	doing string      // as in "cannot read"
	mode  policy.Mode // the least that will do
	last  lastLink    // what to do about a symbolic link that is the last component
	whole bool        // refuse a path at or below which the view has a region
}

// lastLink says what a call does with a symbolic link that its path ends with.
type lastLink int

// refuseLink is for calls about what a link leads to, and takeLink for those about the link itself.
const (
	refuseLink lastLink = iota
	takeLink
	followLink
)

// linkIf is followLink if the caller asked for it, and otherwise the other one.
func linkIf(follow bool, otherwise lastLink) lastLink {
	if follow {
		return followLink
	}
	return otherwise
}

// target finds a path that a caller wrote, through the symbolic links in it. A call without
// permissions has the view of all that the sandbox holds.
func (f *Files) target(ctx context.Context, id, field string, where Where,
	check accessCheck) (fileTarget, error) {
	box, err := f.sandboxes.Find(id)
	if err != nil {
		return fileTarget{}, err
	}
	c, err := f.planner.Resolve(box, plan.Confinement{})
	if err != nil {
		return fileTarget{}, err
	}
	if where.Path == "" {
		return fileTarget{}, errs.Invalid("%s is empty", field)
	}
	path, err := c.FilePath(where.Path)
	if err != nil {
		return fileTarget{}, errs.Invalid("%s: %v", field, err)
	}
	t := fileTarget{asked: path, path: path, view: c.Subject.Held(), user: c.User.String(),
		paths: c.Paths}
	if where.Permissions != nil {
		narrowed := *c
		narrowed.Permissions = where.Permissions
		decided, err := f.planner.DecideView(&narrowed)
		if err != nil {
			return fileTarget{}, err
		}
		t.view = decided.View
	}
	open := func() error { return f.openTarget(ctx, c, &t, check.mode == policy.Writable) }
	if err := t.followLinks(check, open); err != nil {
		t.close()
		return fileTarget{}, err
	}
	return t, nil
}

// openTarget opens the root of the mount that shows the target's path, unless it is open already.
func (f *Files) openTarget(ctx context.Context, c *plan.Call, t *fileTarget, create bool) error {
	if t.path.Within(policy.Tmp) {
		if t.root != nil && t.base == policy.Tmp {
			t.name = t.below()
			return nil
		}
		t.close()
		decided, err := f.planner.Decide(c)
		if err != nil {
			return err
		}
		p, err := f.planner.Plan(ctx, decided, false)
		if err != nil {
			return err
		}
		if t.root, t.host, t.free, err = f.planner.OpenTmp(ctx, p.Spec, t.path, f.tmp, f.token,
			create); err != nil {
			return err
		}
		t.base = policy.Tmp
		t.name = t.below()
		return nil
	}
	at, rest, err := c.Paths.Locate(t.path)
	if err != nil {
		return errs.NotFound("%v", err)
	}
	if t.name = rest; t.root != nil && t.base == at.Container {
		return nil
	}
	t.close()
	t.base, t.host = at.Container, at.Host.String()
	t.root, err = f.planner.Files().OpenRoot(ctx, c.User.String(), at)
	return err
}

// allow checks the path against the view.
func (t *fileTarget) allow(check accessCheck) error {
	at, ok := t.view.At(t.path)
	t.at = at
	switch {
	case !ok && check.mode == policy.Writable:
		return errs.Denied("cannot %s %s: it is in no place that this sandbox may write to",
			check.doing, t.shown())
	case !ok && t.path != t.asked: // denied, as what a link leads to
		return errs.Denied(
			"cannot %s %s: that is in no mount of this sandbox; what belongs to the image can be seen with exec",
			check.doing, t.shown())
	case !ok:
		return errs.NotFound(
			"cannot %s %s: it is in no mount of this sandbox; what belongs to the image can be seen with exec",
			check.doing, t.shown())
	case at.Mode == policy.Empty && t.path == at.Path && check.mode == policy.ReadOnly:
		return nil // a directory with nothing in it
	case at.Mode < policy.ReadOnly:
		return errs.Denied("cannot %s %s: %s", check.doing, t.shown(), at.Why)
	case at.Mode < check.mode:
		return errs.Denied("cannot %s %s: this sandbox may not write there (%s)", check.doing,
			t.shown(), readOnlyWhy(at))
	}
	if inner, held := t.view.Holds(t.path); check.whole && (held || at.Path == t.path) {
		if !held {
			inner = at
		}
		return errs.Denied("cannot %s %s: the place %q has to stay (%s)", check.doing, t.shown(),
			display(inner.Path), inner.Why)
	}
	return nil
}

// shown returns the path in quotes as the caller named it, and where the links in it lead.
func (t *fileTarget) shown() string {
	if t.path == t.asked {
		return strconv.Quote(display(t.asked))
	}
	return fmt.Sprintf("%q, which leads to %q", display(t.asked), display(t.path))
}

func readOnlyWhy(at policy.Region) string {
	if at.Path == policy.Home {
		return "it writes to its working directory and to permissions.writeDirs"
	}
	return at.Why
}

// below returns the path below base.
func (t *fileTarget) below() string {
	if rest, _ := pathmap.CutDir(t.path.String(), t.base.String()); rest != "" {
		return rest
	}
	return "."
}

// failed says what a file call could not do. Errors of hostfs name only the path below the root.
func (t *fileTarget) failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot %s %s: %w", doing, t.shown(), err)
}
