package sandbox

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// ErrNoSpace is the class of an error that comes from a full disk or quota.
var ErrNoSpace = hostfs.ErrNoSpace

// spot is a path that a file call names: allowed by policy and found on the host, but not looked at
// yet. What looks at it goes by root and name.
type spot struct {
	path pathmap.ContainerPath
	view policy.View
	at   policy.Region
	root *hostfs.Root
	name string // below root
	host string // of root
	free func() // gives back what holds root's place
}

func (t spot) close() {
	_ = t.root.Close()
	t.free()
}

// resolved is the path on the host.
func (t spot) resolved() string { return filepath.Join(t.host, t.name) }

// display is the path as agents name it: ~/… in the home.
func display(path pathmap.ContainerPath) string {
	if rest, ok := strings.CutPrefix(path.String(), policy.Home.String()+"/"); ok {
		return "~/" + rest
	}
	if path == policy.Home {
		return "~"
	}
	return path.String()
}

// want is what a file call wants of a path.
type want struct {
	doing string      // as in "cannot read"
	mode  policy.Mode // the least that will do
	// absolute refuses a relative path; whole a path that the view has something of its own below.
	absolute, whole bool
}

// locate finds a path that a caller wrote. What the sandbox holds decides, as a view: the file calls
// have no tags.
func (s *Service) locate(ctx context.Context, box Sandbox, field, written string, w want) (spot, error) {
	paths, err := s.paths(box)
	if err != nil {
		return spot{}, err
	}
	if written == "" {
		return spot{}, errs.Invalid("%s is empty", field)
	}
	if w.absolute && !strings.HasPrefix(written, "/") && !strings.HasPrefix(written, "~/") {
		return spot{}, errs.Invalid("%s %q is not absolute; it begins with / or ~/", field, written)
	}
	path, err := resolve(paths, box.WorkingDir, written)
	if err != nil {
		return spot{}, errs.Invalid("%s: %v", field, err)
	}
	t := spot{path: path, view: s.subject(box).Held(), free: func() {}}
	if err := t.allow(w); err != nil {
		return spot{}, err
	}
	if path.Within(policy.Tmp) {
		return t, s.openTmp(ctx, box, &t, w.mode == policy.Writable)
	}
	return t, s.openIn(ctx, box, paths, &t)
}

// allow holds a path against the view.
func (t *spot) allow(w want) error {
	shown := display(t.path)
	at, ok := t.view.At(t.path)
	t.at = at
	switch {
	case !ok && w.mode == policy.Writable:
		return errs.Denied("cannot %s %q: it is in no place that this sandbox may write to", w.doing, shown)
	case !ok:
		return errs.NotFound("cannot %s %q: it is in no mount of this sandbox; what belongs to the image can be seen with exec", w.doing, shown)
	case at.Mode == policy.Empty && t.path == at.Path && w.mode == policy.ReadOnly:
		return nil // a directory with nothing in it
	case at.Mode < policy.ReadOnly:
		return errs.Denied("cannot %s %q: %s", w.doing, shown, at.Why)
	case at.Mode < w.mode:
		return errs.Denied("cannot %s %q: this sandbox may not write there (%s)", w.doing, shown, readOnlyWhy(at))
	}
	if inner, held := t.view.Holds(t.path); w.whole && (held || at.Path == t.path) {
		if !held {
			inner = at
		}
		return errs.Denied("cannot %s %q: the place %q has to stay (%s)", w.doing, shown, display(inner.Path), inner.Why)
	}
	return nil
}

func readOnlyWhy(at policy.Region) string {
	if at.Path == policy.Home {
		return "it writes to its working directory and to permissions.writeDirs"
	}
	return at.Why
}

// openIn opens the mount that shows a path.
func (s *Service) openIn(ctx context.Context, box Sandbox, paths pathmap.Map, t *spot) error {
	at, rest, err := paths.Locate(t.path)
	if err != nil {
		return errs.NotFound("%v", err)
	}
	h, err := s.openHome(ctx, box.User)
	if err != nil {
		return err
	}
	t.name, t.host = rest, at.Host.String()
	if at.Container == policy.Home {
		t.root, err = h.root()
		_ = unix.Close(h.fd)
		return err
	}
	defer h.close()
	if t.root, err = s.openMount(at.Host, h); err != nil {
		return errs.NotFound("cannot open the mount %q: %v", at.Container, pathless(err))
	}
	return nil
}

// openTmp opens the user's /tmp, which is there while a container is: to write makes one.
func (s *Service) openTmp(ctx context.Context, box Sandbox, t *spot, create bool) error {
	p, err := s.plan(ctx, box, ask{})
	if err != nil {
		return err
	}
	return s.openTmpOf(ctx, p.spec, t, create)
}

func (s *Service) openTmpOf(ctx context.Context, spec dockerexec.Spec, t *spot, create bool) error {
	dir, free, err := s.executor.Tmp(ctx, spec, create)
	if cerrdefs.IsNotFound(err) {
		return errs.NotFound("%q is not there: /tmp is empty when the user's last container has gone", t.path)
	}
	if err != nil {
		return err
	}
	t.free, t.host = free, dir
	if t.root, err = openTmpRoot(dir, spec.UID, spec.GID); err != nil {
		free()
		return s.hidden(ctx, "cannot open /tmp", err)
	}
	t.name = "."
	if t.path != policy.Tmp {
		t.name = strings.TrimPrefix(t.path.String(), policy.Tmp.String()+"/")
	}
	return nil
}

// makeTmpHome makes the directory that a call has taken for its home, where that is in /tmp.
func (s *Service) makeTmpHome(ctx context.Context, p plan) error {
	path, err := pathmap.ParseContainer(p.home)
	if err != nil || path == policy.Tmp || !path.Within(policy.Tmp) {
		return err
	}
	t := spot{path: path}
	if err := s.openTmpOf(ctx, p.spec, &t, true); err != nil {
		return err
	}
	defer t.close()
	if err := t.root.Mkdir(t.name, true); err != nil {
		return errs.Invalid("home: cannot make %q: %v", p.home, err)
	}
	return nil
}

// openTmpRoot opens a /tmp and makes sure that it is the tmpfs which the engine has mounted: where the
// service does not see the engine's mounts, there is only an ordinary directory.
func openTmpRoot(dir string, uid, gid uint32) (*hostfs.Root, error) {
	root, err := hostfs.Open(hostfs.Config{Dir: dir, UID: uid, GID: gid})
	if err != nil {
		return nil, err
	}
	var st unix.Statfs_t
	if err = unix.Statfs(dir, &st); err == nil && st.Type != unix.TMPFS_MAGIC {
		err = errors.New("the service does not see the engine's mount of it; where sandboxd is in a container, bind the engine's volumes into it with propagation rslave")
	}
	// The look at the file system was by name: it has to be the one that was opened.
	if it, here := (identified{}), (hostfs.Info{}); err == nil {
		it, err = identify(dir)
		if err == nil {
			here, err = root.Stat(".")
		}
		if err == nil && !it.id.Same(dockerexec.FileID{Dev: here.Dev, Ino: here.Ino}) {
			err = errors.New("it went away just now; try again")
		}
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

// doing says what a file call could not do. Errors of hostfs name the path below the root only.
func (t spot) failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot %s %q: %w", doing, display(t.path), err)
}
