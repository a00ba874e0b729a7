package sandbox

import (
	"errors"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// showing is a directory of the host and where a container shows it: the home, or a further mount.
type showing struct{ dir, target string }

// at is a path of the host in it.
func (s showing) at(rest string) string { return filepath.Join(s.dir, rest) }

// shownBy finds the directory that shows a path inside; ok is false for what belongs to the image.
func (g *Ground) shownBy(spec dockerexec.Spec, target string) (s showing, rest string, ok bool) {
	s = showing{filepath.Join(g.usersDir, spec.User, "home"), policy.Home.String()}
	if rest, ok = pathmap.CutDir(target, s.target); ok {
		return s, rest, true
	}
	for _, m := range spec.Mounts { // a part of a mount may be mounted in it once more: the widest counts
		if pathmap.Within(target, m.Target) && (!ok || len(m.Target) < len(s.target)) {
			s, ok = showing{m.Source, m.Target}, true
		}
	}
	rest, _ = pathmap.CutDir(target, s.target)
	return s, rest, ok
}

// guarded are the mounts by which something in a place that can be written is read-only. Like a mask, such
// a mount is gone when somebody on the host puts another file under its name.
func guarded(spec dockerexec.Spec) []dockerexec.Mount {
	var all []dockerexec.Mount
	for _, m := range spec.Mounts {
		if m.ReadOnly && writable(spec, path.Dir(m.Target)) {
			all = append(all, m)
		}
	}
	return all
}

// site is an open directory of the host that a Spec has places in.
type site struct {
	showing
	fd   int
	root *hostfs.Root // for what is done as the home's owner
}

// sites are those of one Spec, opened as they are needed.
type sites struct {
	ground *Ground
	spec   dockerexec.Spec
	open   map[string]*site // by target
}

func (g *Ground) sites(spec dockerexec.Spec) *sites {
	return &sites{ground: g, spec: spec, open: map[string]*site{}}
}

// of is the site of a path inside, and the rest of it below. It is nil for what belongs to the image.
func (s *sites) of(target string) (_ *site, rest string, _ error) {
	where, rest, ok := s.ground.shownBy(s.spec, target)
	if !ok {
		return nil, "", nil
	}
	if there := s.open[where.target]; there != nil {
		return there, rest, nil
	}
	fd, err := openExactly(where.dir)
	if err != nil {
		return nil, "", err
	}
	root, err := openRoot(hostfs.Config{Dir: where.dir, UID: s.spec.UID, GID: s.spec.GID})
	if err == nil {
		err = s.meant(where, fd)
	}
	if err != nil {
		if root != nil {
			_ = root.Close()
		}
		return nil, "", errors.Join(err, unix.Close(fd))
	}
	opened := &site{showing: where, fd: fd, root: root}
	s.open[where.target] = opened
	return opened, rest, nil
}

// meant makes sure that an open directory is the one that the Spec mounts.
func (s *sites) meant(where showing, fd int) error {
	it, err := identifyOpen(fd)
	if err != nil {
		return err
	}
	for _, m := range s.spec.Mounts {
		if m.Target == where.target && !m.ID.Same(it.id) {
			return errors.New("it was exchanged just now")
		}
	}
	return nil
}

func (s *sites) close() {
	for _, there := range s.open {
		_ = there.root.Close()
		_ = unix.Close(there.fd)
	}
}
