package sandbox

import (
	"context"
	"fmt"
	"strings"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/pathmap"
)

// fileTarget is a path that a file call names. Policy allows it and its mount was found on the host, but the
// file itself was not looked at yet: that goes through root and name.
type fileTarget struct {
	path pathmap.ContainerPath
	view policy.View
	at   policy.Region
	root *hostfs.Root
	name string // below root
	host string // of root
	user string
	free func() // releases what keeps root's directory; nil for nothing
}

func (t fileTarget) close() {
	_ = t.root.Close()
	if t.free != nil {
		t.free()
	}
}

// hostPath returns the path on the host.
func (t fileTarget) hostPath() string {
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
	// absolute refuses a relative path; whole refuses a path at or below which the view has a region.
	absolute, whole bool
}

// tmpOpener finds the users' /tmp. *dockerexec.Executor is one.
type tmpOpener interface {
	Tmp(ctx context.Context, spec dockerexec.Spec, token quota.Token, create bool) (dir string, release func(), err error)
}

// target finds a path that a caller wrote. File calls have no tags, so the view of all that the sandbox holds decides.
func (s *Service) target(ctx context.Context, id, field, written string, check accessCheck) (fileTarget, error) {
	c, err := s.call(id, Confinement{})
	if err != nil {
		return fileTarget{}, err
	}
	if written == "" {
		return fileTarget{}, errs.Invalid("%s is empty", field)
	}
	if check.absolute && !strings.HasPrefix(written, "/") && !strings.HasPrefix(written, "~/") {
		return fileTarget{}, errs.Invalid("%s %q is not absolute; it begins with / or ~/", field, written)
	}
	path, err := c.path(written)
	if err != nil {
		return fileTarget{}, errs.Invalid("%s: %v", field, err)
	}
	t := fileTarget{path: path, view: c.subject.Held(), user: c.User.String()}
	if err := t.allow(check); err != nil {
		return fileTarget{}, err
	}
	if path.Within(policy.Tmp) {
		p, err := s.resolver.plan(ctx, c, false)
		if err != nil {
			return fileTarget{}, err
		}
		return t, t.openTmp(ctx, s.resolver, s.executor, p.spec, s.token, check.mode == policy.Writable)
	}
	at, rest, err := c.paths.Locate(path)
	if err != nil {
		return fileTarget{}, errs.NotFound("%v", err)
	}
	t.name, t.host = rest, at.Host.String()
	t.root, err = s.resolver.rootfs.OpenRoot(ctx, c.User.String(), at)
	return t, err
}

// allow checks the path against the view.
func (t *fileTarget) allow(check accessCheck) error {
	shown := display(t.path)
	at, ok := t.view.At(t.path)
	t.at = at
	switch {
	case !ok && check.mode == policy.Writable:
		return errs.Denied("cannot %s %q: it is in no place that this sandbox may write to", check.doing, shown)
	case !ok:
		return errs.NotFound("cannot %s %q: it is in no mount of this sandbox; what belongs to the image can be seen with exec", check.doing, shown)
	case at.Mode == policy.Empty && t.path == at.Path && check.mode == policy.ReadOnly:
		return nil // a directory with nothing in it
	case at.Mode < policy.ReadOnly:
		return errs.Denied("cannot %s %q: %s", check.doing, shown, at.Why)
	case at.Mode < check.mode:
		return errs.Denied("cannot %s %q: this sandbox may not write there (%s)", check.doing, shown, readOnlyWhy(at))
	}
	if inner, held := t.view.Holds(t.path); check.whole && (held || at.Path == t.path) {
		if !held {
			inner = at
		}
		return errs.Denied("cannot %s %q: the place %q has to stay (%s)", check.doing, shown, display(inner.Path), inner.Why)
	}
	return nil
}

func readOnlyWhy(at policy.Region) string {
	if at.Path == policy.Home {
		return "it writes to its working directory and to permissions.writeDirs"
	}
	return at.Why
}

// openTmp opens the user's /tmp, which exists while the user has a container; create makes a container
// on behalf of the token.
func (t *fileTarget) openTmp(ctx context.Context, r *Resolver, executor tmpOpener, spec dockerexec.Spec, token quota.Token, create bool) error {
	dir, free, err := executor.Tmp(ctx, spec, token, create)
	if cerrdefs.IsNotFound(err) {
		return errs.NotFound("%q is not there: /tmp is empty when the user's last container has gone", t.path)
	}
	if err != nil {
		return err
	}
	t.free, t.host = free, dir
	if t.root, err = r.rootfs.OpenTmp(dir, spec); err != nil {
		free()
		return errs.Redact(ctx, r.log, "cannot open /tmp", err)
	}
	t.name = "."
	if rest, _ := pathmap.CutDir(t.path.String(), policy.Tmp.String()); rest != "" {
		t.name = rest
	}
	return nil
}

// failed says what a file call could not do. Errors of hostfs name only the path below the root.
func (t fileTarget) failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot %s %q: %w", doing, display(t.path), err)
}
