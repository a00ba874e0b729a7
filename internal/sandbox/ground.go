package sandbox

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/pathmap"
)

// Ground makes what a container's masks and pins stand on in a home or a further mount, and takes it away
// when no container needs it. It is a dockerexec.Grounds.
type Ground struct {
	usersDir string
	log      zerolog.Logger

	mu sync.Mutex
	// needed counts, for each path of the host, the containers that need it; made are the directories
	// that were made here.
	needed map[string]int
	made   map[string]bool
	// laid are the Specs that have a container.
	laid    map[dockerexec.Fingerprint]laid
	watched watch
}

// NewGround makes a Ground for those whose homes are in usersDir, which must have no link in its path.
func NewGround(usersDir string, log zerolog.Logger) *Ground {
	return &Ground{usersDir: usersDir, log: log, needed: map[string]int{}, made: map[string]bool{}, laid: map[dockerexec.Fingerprint]laid{}}
}

// foothold is a path of the host that a Spec needs, and where that is inside.
type foothold struct{ name, target string }

// places are those that a Spec needs.
func places(spec dockerexec.Spec) []foothold {
	var all []foothold
	for _, pin := range spec.Pins {
		all = append(all, foothold{pin.Place, pin.Target})
	}
	for _, m := range spec.Masks {
		if m.Place != "" {
			all = append(all, foothold{m.Place, m.Target})
		}
	}
	return all
}

// Lay makes the places of a Spec's masks and pins and finds the further names of hidden files.
func (g *Ground) Lay(spec dockerexec.Spec) (_ dockerexec.Ground, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	open := g.sites(spec)
	defer open.close()
	for _, place := range places(spec) {
		g.needed[place.name]++
	}
	defer func() {
		if err != nil {
			g.clear(open)
		}
	}()
	var ground dockerexec.Ground
	for _, pin := range spec.Pins {
		mount, err := g.pin(open, pin)
		if err != nil {
			return ground, err
		}
		ground.Mounts = append(ground.Mounts, mount)
	}
	for _, m := range spec.Masks {
		if m.Place == "" {
			continue
		}
		if err := g.makePlace(open, m); err != nil {
			return ground, fmt.Errorf("cannot hide %s: %w", m.Target, err)
		}
	}
	if err := g.hideLinks(open, &ground); err != nil {
		return ground, err
	}
	if err := g.watchSpec(spec); err != nil {
		g.unwatch(spec)
		return ground, err
	}
	g.laid[spec.Fingerprint()] = laid{Spec: spec, since: g.watched.position()}
	return ground, nil
}

// Clear takes away what no container needs any more.
func (g *Ground) Clear(spec dockerexec.Spec) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.laid, spec.Fingerprint())
	g.unwatch(spec)
	open := g.sites(spec)
	defer open.close()
	g.clear(open)
}

func (g *Ground) clear(open *sites) {
	all := places(open.spec)
	slices.SortFunc(all, func(a, b foothold) int { return len(b.name) - len(a.name) }) // what is inside first
	for _, place := range all {
		if !g.release(place.name) {
			continue
		}
		site, rest, err := open.of(place.target)
		if err != nil || site == nil {
			g.log.Warn().Err(err).Str("user", open.spec.User).Str("place", place.target).Msg("cannot take the place of a mask away")
			continue
		}
		g.removePlace(site, rest)
	}
}

// release says that nobody needs a place any more.
func (g *Ground) release(place string) bool {
	g.needed[place]--
	if g.needed[place] > 0 {
		return false
	}
	delete(g.needed, place)
	return true
}

// in is the site of a path inside that is not the image's.
func (s *sites) in(target string) (*site, string, error) {
	site, rest, err := s.of(target)
	if err == nil && site == nil {
		err = errors.New("no mount holds it")
	}
	return site, rest, err
}

// pin makes a directory that is to be pinned and says how it is mounted.
func (g *Ground) pin(open *sites, pin dockerexec.Pin) (dockerexec.Mount, error) {
	site, rel, err := open.in(pin.Target)
	if err != nil {
		return dockerexec.Mount{}, fmt.Errorf("cannot pin %s: %w", pin.Target, err)
	}
	if err := g.makeDirs(site, rel); err != nil {
		return dockerexec.Mount{}, fmt.Errorf("cannot pin %s: %w", pin.Target, err)
	}
	info, err := site.root.Stat(rel)
	if err == nil && info.Type != hostfs.Directory {
		err = fmt.Errorf("it is a %s, and what is hidden below its name could not be kept so: remove or rename it", info.Type)
	}
	if err != nil {
		return dockerexec.Mount{}, fmt.Errorf("cannot pin %s: %w", pin.Target, err)
	}
	return dockerexec.Mount{
		Source: pin.Place, Target: pin.Target, Verify: true, ID: dockerexec.FileID{Dev: info.Dev, Ino: info.Ino},
	}, nil
}

// makeDirs makes the directories of a path as the home's owner, and remembers which were not there.
func (g *Ground) makeDirs(site *site, rel string) error {
	for i := range len(rel) + 1 {
		if i < len(rel) && rel[i] != '/' {
			continue
		}
		err := site.root.Mkdir(rel[:i], false)
		if err == nil {
			g.made[site.at(rel[:i])] = true
		} else if info, statErr := site.root.Stat(rel[:i]); statErr != nil || info.Type == hostfs.Symlink {
			return err
		}
	}
	return nil
}

// makePlace makes what a mask is put on, where there is nothing: a directory of root's that is closed
// to everyone, or, for a mask that may be looked into, an ordinary one.
func (g *Ground) makePlace(open *sites, m dockerexec.Mask) error {
	site, rel, err := open.in(m.Target)
	if err != nil {
		return err
	}
	if dir := path.Dir(rel); dir != "." {
		if err := g.makeDirs(site, dir); err != nil {
			return err
		}
	}
	if m.Listable {
		return g.makeDirs(site, rel)
	}
	dir, leaf, err := parentOf(site.fd, rel)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Mkdirat(dir, leaf, 0); !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// removePlace takes away what makePlace or makeDirs has made, if it is still empty. A directory that is
// closed and root's was made here, by this service or an earlier one.
func (g *Ground) removePlace(site *site, rel string) {
	for ; rel != "."; rel = path.Dir(rel) {
		name := site.at(rel)
		dir, leaf, err := parentOf(site.fd, rel)
		if err != nil {
			return
		}
		var st unix.Stat_t
		err = unix.Fstatat(dir, leaf, &st, unix.AT_SYMLINK_NOFOLLOW)
		ours := g.made[name] || (st.Uid == 0 && st.Mode == unix.S_IFDIR)
		if err == nil && ours && g.needed[name] == 0 {
			// What another container still has something in stays, and is ours to remove then.
			if err = unix.Unlinkat(dir, leaf, unix.AT_REMOVEDIR); !errors.Is(err, unix.ENOTEMPTY) {
				delete(g.made, name)
			}
		}
		_ = unix.Close(dir)
		if err != nil || !ours {
			return
		}
	}
}

// hideLinks adds masks for the further names of hidden files, and pins for the directories that hold
// those names where they could be renamed.
func (g *Ground) hideLinks(open *sites, ground *dockerexec.Ground) error {
	for _, link := range open.spec.Links {
		ground.Masks = append(ground.Masks, dockerexec.Mask{Target: link.Target, File: true})
	}
	for _, dir := range linkDirs(open.spec) {
		site, rest, err := open.in(dir)
		if err != nil {
			return err
		}
		mount, err := g.pin(open, dockerexec.Pin{Place: site.at(rest), Target: dir})
		if err != nil {
			return err
		}
		ground.Mounts = append(ground.Mounts, mount)
	}
	return nil
}

// writable says whether the nearest mount of a Spec that holds a path can be written.
func writable(spec dockerexec.Spec, target string) bool {
	var nearest dockerexec.Mount
	for _, m := range spec.Mounts {
		if pathmap.Within(target, m.Target) && len(m.Target) > len(nearest.Target) {
			nearest = m
		}
	}
	return nearest.Target != "" && !nearest.ReadOnly
}
