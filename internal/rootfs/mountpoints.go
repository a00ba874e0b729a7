package rootfs

import (
	"crypto/rand"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/fair"
	"github.com/daycare-run/sandbox/internal/hostfs"
)

// Preparer makes the mount points of masks and pins in homes and further mounts, and removes them
// when no container needs them any more. It implements dockerexec.Config.Mounts, and is safe for
// concurrent use.
type Preparer struct {
	usersDir string
	log      zerolog.Logger
	walks    *hostfs.Walks // those of Follow; else only single names are made and looked at
	followed *fair.Pool    // the directories that Follow follows
	// followedDirs is how many are followed below each.
	followedDirs int

	questions questions
	empty     emptyDirs

	mu sync.Mutex // held while homes and further mounts are accessed, all of which have just answered
	// needed counts for what each host path is needed: as a mount point, or for one below it.
	needed map[string]int
	// made are the directories that this Preparer made, of those that are needed.
	made map[string]bool
	// mounted are the Specs that have a container.
	mounted map[dockerexec.Fingerprint]mounted
	watches watches
}

// NewPreparer returns a Preparer for homes in usersDir, which must have no link in its path.
func NewPreparer(usersDir string, log zerolog.Logger) *Preparer {
	return &Preparer{usersDir: usersDir, log: log, walks: hostfs.NewWalks(),
		followed: fair.NewPool(maxFollowed, 0), followedDirs: followedDirs(),
		needed: map[string]int{}, made: map[string]bool{},
		mounted: map[dockerexec.Fingerprint]mounted{}}
}

// mountPoint is a host path on which something is mounted, or a directory above it, and its
// container path.
type mountPoint struct {
	name, target string
	file         bool // a file that stands in
}

// mountPoints returns the mount points of a Spec that Prepare makes if they are missing. Each comes
// with the directories above it in its home or further mount, which may be several times among
// them.
func (p *Preparer) mountPoints(spec dockerexec.Spec) []mountPoint {
	var all []mountPoint
	add := func(target string, file bool) {
		view, rest, _ := p.viewOf(spec, target)
		for ; rest != "." && rest != ""; rest = path.Dir(rest) {
			all = append(all, mountPoint{view.at(rest), path.Join(view.target, rest), file})
			file = false
		}
	}
	for _, dir := range linkDirs(spec) {
		add(dir, false)
	}
	for _, pin := range spec.Pins {
		add(pin.Target, false)
	}
	for _, m := range spec.Masks {
		if m.Place != "" {
			add(m.Target, m.File && m.ID == dockerexec.FileID{})
		}
	}
	return all
}

// Prepare makes the mount points of a Spec's masks and pins, and returns what must be mounted
// besides.
func (p *Preparer) Prepare(spec dockerexec.Spec) (_ dockerexec.Prepared, err error) {
	if err := p.ask(spec, answerLimit); err != nil {
		return dockerexec.Prepared{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	dirs := p.rootDirs(spec)
	defer dirs.close()
	for _, point := range p.mountPoints(spec) {
		p.needed[point.name]++
	}
	defer func() {
		if err != nil {
			p.release(dirs)
		}
	}()
	var prepared dockerexec.Prepared
	for _, pin := range spec.Pins {
		mount, err := p.pin(dirs, pin)
		if err != nil {
			return prepared, err
		}
		prepared.Mounts = append(prepared.Mounts, mount)
	}
	for _, m := range spec.Masks {
		if m.Place == "" {
			continue
		}
		if err := p.makeMountPoint(dirs, m); err != nil {
			return prepared, fmt.Errorf("cannot hide %s: %w", m.Target, err)
		}
	}
	if err := p.maskLinks(dirs, &prepared); err != nil {
		return prepared, err
	}
	known, held := p.mounted[spec.Fingerprint()]
	if err := p.watchSpec(spec); err != nil {
		if !held {
			p.unwatch(spec)
		}
		return prepared, err
	}
	if !p.isUnchanged(dirs) {
		if !held {
			p.unwatch(spec)
		}
		return prepared,
			fmt.Errorf("what the call gives up came to exist, or a link to it was changed, while its container was made; try again: %w",
				cerrdefs.ErrUnavailable)
	}
	if !held {
		known = mounted{Spec: spec, since: p.watches.position()}
	}
	known.containers++
	p.mounted[spec.Fingerprint()] = known
	return prepared, nil
}

// Release removes what no container needs any more.
func (p *Preparer) Release(spec dockerexec.Spec) {
	silent := p.ask(spec, answerLimit)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetContainer(spec)
	dirs := p.rootDirs(spec)
	dirs.silent = silent
	defer dirs.close()
	p.release(dirs)
}

// Forget is Release for a home that another host may use by now: it is left as it is. A mount point
// of root's is removed once a container that needed it is released; a directory of the home's owner
// stays.
func (p *Preparer) Forget(spec dockerexec.Spec) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetContainer(spec)
	for _, point := range p.mountPoints(spec) {
		p.stillNeeds(point)
	}
}

// forgetContainer counts one container of a Spec less.
func (p *Preparer) forgetContainer(spec dockerexec.Spec) {
	known := p.mounted[spec.Fingerprint()]
	if known.containers--; known.containers > 0 {
		p.mounted[spec.Fingerprint()] = known
	} else {
		delete(p.mounted, spec.Fingerprint())
		p.unwatch(spec)
	}
}

// stillNeeds counts one need of a mount point less, and reports whether there are others.
func (p *Preparer) stillNeeds(point mountPoint) bool {
	if p.needed[point.name]--; p.needed[point.name] > 0 {
		return true
	}
	delete(p.needed, point.name)
	delete(p.made, point.name) // also if it is still there: then it is the user's
	return false
}

func (p *Preparer) release(dirs *rootDirs) {
	all := p.mountPoints(dirs.spec)
	slices.SortFunc(all, func(a, b mountPoint) int { return len(b.name) - len(a.name) }) // what is inside first
	for _, point := range all {
		made := p.made[point.name]
		if p.stillNeeds(point) {
			continue
		}
		if dir, rest, err := dirs.mustFind(point.target); err == nil {
			removeMountPoint(dir, rest, made, point.file)
		} else {
			p.log.Warn().Err(err).Str("user", dirs.spec.User).Str("place", point.target).
				Msg("cannot remove the mount point of a mask")
		}
	}
}

// pin makes a directory that is to be pinned, and returns its mount.
func (p *Preparer) pin(dirs *rootDirs, pin dockerexec.Pin) (dockerexec.Mount, error) {
	dir, rest, err := dirs.mustFind(pin.Target)
	if err == nil {
		err = p.makeDirs(dir, rest)
	}
	var info hostfs.Info
	if err == nil {
		info, err = dir.root.Stat(rest)
	}
	if err == nil && info.Type != hostfs.Directory {
		err = fmt.Errorf(
			"it is a %s, so what is below its name could not be kept hidden: remove or rename it",
			info.Type)
	}
	if err != nil {
		return dockerexec.Mount{}, fmt.Errorf("cannot pin %s: %w", pin.Target, err)
	}
	return dockerexec.Mount{
		Source: pin.Place, Target: pin.Target, Verify: true,
		ID: dockerexec.FileID{Dev: info.Dev, Ino: info.Ino},
	}, nil
}

// makeDirs makes the directories of a path as the home's owner, and remembers those that did not
// exist.
func (p *Preparer) makeDirs(dir *rootDir, name string) error {
	for i := range len(name) + 1 {
		if i < len(name) && name[i] != '/' {
			continue
		}
		err := dir.root.Mkdir(name[:i], false)
		if err == nil {
			p.made[dir.at(name[:i])] = true
		} else if info, statErr := dir.root.Stat(name[:i]); statErr != nil ||
			info.Type == hostfs.Symlink {
			return err
		}
	}
	return nil
}

// makeMountPoint makes a mask's mount point if nothing is there: a file or a directory of root's or,
// for a directory of the tenant's own, an ordinary one.
func (p *Preparer) makeMountPoint(dirs *rootDirs, m dockerexec.Mask) error {
	dir, name, err := dirs.mustFind(m.Target)
	if err != nil {
		return err
	}
	if above := path.Dir(name); above != "." {
		if err := p.makeDirs(dir, above); err != nil {
			return err
		}
	}
	if m.Listable && !m.File {
		return p.makeDirs(dir, name)
	}
	parent, leaf, err := openParent(dir.fd, name)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if m.File {
		err = makeReadable(parent, leaf)
	} else if err = unix.Mkdirat(parent, leaf, closed); err == nil {
		err = makeListable(parent, leaf)
	}
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

func makeReadable(parent int, leaf string) error {
	fd, err := unix.Openat(parent, leaf,
		unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, closed)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fchmod(fd, readableFile), unix.Close(fd))
}

// makeListable gives a mount point that was just made the mode of one that programs may list. The
// tenant can have exchanged it meanwhile, but has no directory like it that is not a mount point,
// too.
func makeListable(parent int, leaf string) error {
	fd, err := openBeneath(parent, leaf, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	it, err := identifyOpen(fd)
	if err == nil && !it.isStandIn() {
		err = errExchanged
	}
	if err != nil {
		return err
	}
	return unix.Fchmod(fd, listableDir)
}

// removeMountPoint removes what makeMountPoint or makeDirs has made, if it is still empty. made says
// that this Preparer did; what isStandIn recognises was made by this service or another one. Only
// where a file stands in is a file removed.
func removeMountPoint(dir *rootDir, rest string, made, file bool) {
	parent, leaf, err := openParent(dir.fd, rest)
	if err != nil {
		return
	}
	defer unix.Close(parent)
	switch it, err := identifyAt(parent, leaf, unix.AT_SYMLINK_NOFOLLOW); {
	case err != nil:
	case it.mode&unix.S_IFMT == unix.S_IFREG:
		if file && it.isStandIn() {
			removeFile(parent, leaf)
		}
	case made || it.isStandIn():
		_ = unix.Unlinkat(parent, leaf, unix.AT_REMOVEDIR)
	}
}

// removeFile removes a file that stands in. What somebody puts in its place meanwhile is put back.
func removeFile(parent int, leaf string) {
	aside := ".daycare-" + rand.Text()
	if unix.Renameat(parent, leaf, parent, aside) != nil {
		return
	}
	it, err := identifyAt(parent, aside, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && it.isStandIn() {
		_ = unix.Unlinkat(parent, aside, 0)
		return
	}
	_ = unix.Renameat2(parent, aside, parent, leaf, unix.RENAME_NOREPLACE)
}

// maskLinks adds masks for the further names of hidden files, and pins for the directories that
// hold those names, if they could be renamed.
func (p *Preparer) maskLinks(dirs *rootDirs, prepared *dockerexec.Prepared) error {
	for _, link := range dirs.spec.Links {
		prepared.Masks = append(prepared.Masks, dockerexec.Mask{Target: link.Target, File: true})
	}
	for _, target := range linkDirs(dirs.spec) {
		dir, rest, err := dirs.mustFind(target)
		if err != nil {
			return err
		}
		mount, err := p.pin(dirs, dockerexec.Pin{Place: dir.at(rest), Target: target})
		if err != nil {
			return err
		}
		prepared.Mounts = append(prepared.Mounts, mount)
	}
	return nil
}
