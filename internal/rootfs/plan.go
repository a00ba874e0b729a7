package rootfs

import (
	"errors"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// Request is what Plan plans a filesystem from.
type Request struct {
	// Decision is what policy lets a call see, and Paths tells where it is on the host.
	Decision policy.Decision
	Paths    pathmap.Map
	// DryRun makes no directories that the call may write to.
	DryRun bool
	// Detached is for a container that goes on while no service watches what is to be hidden.
	Detached bool
}

// Plan returns a Spec with the filesystem of a container and the user that owns it. Granted
// directories of the home are made if they do not exist, unless it is a dry run.
func (h *Home) Plan(r Request) (dockerexec.Spec, error) {
	b := &builder{Request: r, home: h, secrets: map[pathmap.Mount][]string{},
		disks: map[string]disk{}, asked: map[pathmap.Mount]bool{},
		spec: dockerexec.Spec{
			User: h.user, UID: h.uid, GID: h.gid, SpoolDir: h.spoolDir(), Events: r.Decision.Events,
		}}
	for _, region := range r.Decision.View.Regions() {
		if err := b.addRegion(region); err != nil {
			return b.spec, err
		}
	}
	for _, pin := range r.Decision.View.Pinned() {
		if at, rest, err := r.Paths.Locate(pin); err == nil && b.holdsMount(pin) {
			b.spec.Pins = append(b.spec.Pins,
				dockerexec.Pin{Place: b.hostPath(at, rest), Target: pin.String()})
		}
	}
	for _, link := range r.Decision.Symlinks {
		b.spec.Symlinks = append(b.spec.Symlinks,
			dockerexec.Symlink{Target: link.Path.String(), Text: link.Text})
	}
	for at, hidden := range b.secrets {
		if err := b.addLinks(at, hidden); err != nil {
			return b.spec, err
		}
	}
	if r.Decision.Events {
		if err := b.addEventsSocket(); err != nil {
			return b.spec, err
		}
	}
	return b.spec, checkNames(b.spec)
}

// checkNames refuses what Docker cannot be told to mount at: its API is JSON, in which a name that
// is not UTF-8 becomes another one. The mount would be at that one, and what it is to hide would be
// seen.
func checkNames(spec dockerexec.Spec) error {
	var targets []string
	for _, m := range spec.Mounts {
		targets = append(targets, m.Target)
	}
	for _, m := range spec.Masks {
		targets = append(targets, m.Target)
	}
	for _, pin := range spec.Pins {
		targets = append(targets, pin.Target)
	}
	for _, link := range spec.Links {
		targets = append(targets, link.Target)
	}
	for _, name := range targets {
		if !utf8.ValidString(name) {
			return errs.Denied(
				"cannot mount or hide %q: it is not UTF-8, and Docker mounts no such path; if it is a further name of a hidden file, rename or remove it",
				name)
		}
	}
	return nil
}

// builder puts the filesystem of one Spec together.
type builder struct {
	Request
	home *Home
	spec dockerexec.Spec
	// secrets are, for each mount, the paths below it at which there is something to hide.
	secrets map[pathmap.Mount][]string
	// disks has the host's directories of which that is known.
	disks map[string]disk
	// asked are the mounts that have answered.
	asked map[pathmap.Mount]bool
	// files are in the place of directories that would hold what is to be hidden.
	files []pathmap.ContainerPath
}

// hostPath returns the host path of a path below a mount.
func (b *builder) hostPath(at pathmap.Mount, rest string) string {
	return filepath.Join(b.home.planner.real(at.Host), rest)
}

// addRegion adds a region to the Spec, as a mount, a mask or nothing.
func (b *builder) addRegion(r policy.Region) error {
	if r.Path == policy.Tmp {
		return nil // every container has it
	}
	if at, _, err := b.Paths.Locate(r.Path); err == nil && !b.asked[at] {
		if err := b.home.planner.askMount(at); err != nil {
			return err
		}
		b.asked[at] = true
	}
	if r.Mode == policy.ReadOnly {
		if added, err := b.addVacant(r); added || err != nil {
			return err
		}
	}
	switch {
	case r.Mode >= policy.ReadOnly:
		mount, err := b.mount(r)
		b.spec.Mounts = append(b.spec.Mounts, mount)
		return err
	case r.NoParents && !b.canBeThere(r.Path):
		return nil
	default:
		mask, err := b.mask(r)
		b.spec.Masks = append(b.spec.Masks, mask)
		return err
	}
}

// mount returns the mount for a region. In the home, it is made if it does not exist, unless it is
// a dry run.
func (b *builder) mount(r policy.Region) (dockerexec.Mount, error) {
	m := dockerexec.Mount{Target: r.Path.String(), ReadOnly: r.Mode != policy.Writable}
	at, rest, err := b.Paths.Locate(r.Path)
	if err != nil {
		return m, err
	}
	m.Source = b.hostPath(at, rest)
	inHome := at.Container == policy.Home
	if inHome && rest == "." {
		m.ID = b.home.id
		return m, nil
	}
	if why := b.home.planner.reserved(at.Host); why != "" && !inHome { // a record may be older than a setting
		return m, errs.Denied("cannot mount %q: %s", r.Path, why)
	}
	m.Verify = true
	it, err := b.identify(at, rest)
	if errors.Is(err, unix.ENOENT) && inHome && !b.DryRun {
		// This includes read-only directories: an app's own directory exists from the start.
		if err := b.makeGranted(r, rest); err != nil {
			return m, errs.Invalid("cannot grant %q: %v", r.Path, err)
		}
		it, err = b.identify(at, rest)
	}
	m.ID = it.id
	return m, b.checkMounted(r.Path, it, err)
}

// makeGranted makes what a region of the home is to show, if it is not there. Only its name says
// whether that is to be a file: notes.md is one, and of .env nobody knows.
func (b *builder) makeGranted(r policy.Region, rest string) error {
	base := path.Base(rest)
	name, ext := strings.TrimPrefix(base, "."), path.Ext(strings.TrimPrefix(base, "."))
	switch {
	case r.Mode == policy.Writable && ext == "" && name != base:
		return errors.New(
			"it is not there, and may be meant as a file or as a directory: write the file, or make the directory, before it is granted")
	case r.Mode != policy.Writable || !isFileExtension(ext):
		_, err := b.home.makeDir(rest)
		return err
	}
	root, err := b.home.root()
	if err != nil {
		return err
	}
	file, err := root.Create(rest, hostfs.Exclusive, 0o644)
	if err == nil {
		_, err = file.Commit()
	}
	if cerrdefs.IsConflict(err) {
		return nil // another call has just made it: what is there is looked at again
	}
	return err
}

// isFileExtension reports whether the end of a name says that it is a file's: letters, then letters
// or digits, other than those of directories (conf.d, project.git).
func isFileExtension(ext string) bool {
	if len(ext) < 2 || ext == ".d" || ext == ".git" || ext[1] >= '0' && ext[1] <= '9' {
		return false
	}
	return strings.Trim(strings.ToLower(ext[1:]), "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// checkMounted refuses what cannot be mounted at a path. err is the error of looking at it.
func (b *builder) checkMounted(at pathmap.ContainerPath, it identity, err error) error {
	kind := it.mode & unix.S_IFMT
	switch {
	case errors.Is(err, unix.ENOENT) && b.DryRun:
		return nil
	case errors.Is(err, unix.ENOENT):
		return errs.NotFound("cannot grant %q: it is not there", at)
	case errors.Is(err, unix.ELOOP):
		return errs.Denied("cannot mount %q: it is, or is behind, a symbolic link", at)
	case err != nil:
		return errs.Invalid("cannot grant %q: %v", at, err)
	case kind != unix.S_IFDIR && kind != unix.S_IFREG:
		return errs.Invalid("cannot grant %q: it is neither a directory nor a file", at)
	}
	return nil
}

// identify identifies the file that is to be mounted.
func (b *builder) identify(at pathmap.Mount, rest string) (identity, error) {
	if at.Container != policy.Home {
		return identifyNoFollow(b.hostPath(at, rest))
	}
	fd, err := openBeneath(b.home.fd, rest, unix.O_PATH)
	if err != nil {
		return identity{}, err
	}
	defer unix.Close(fd)
	return identifyOpen(fd)
}

// addEventsSocket adds the caller's control socket.
func (b *builder) addEventsSocket() error {
	socket := b.home.planner.cfg().EventsSocket
	if socket == "" {
		return errs.Denied(
			"permissions: @events is not available: the operator has set no eventsSocket")
	}
	it, err := identify(socket)
	if err != nil {
		return errs.NotFound("permissions: @events: the caller's control socket is not there: %v",
			errs.WithoutPath(err))
	}
	b.spec.Mounts = append(b.spec.Mounts,
		dockerexec.Mount{Source: socket, Target: EventsPath, ReadOnly: true, ID: it.id})
	return nil
}

// CountMounts returns how many bind mounts a Spec takes besides those that every container has, and
// how many of them are for further names of hidden files.
func CountMounts(spec dockerexec.Spec) (all, forLinks int) {
	forLinks = len(spec.Links) + len(linkDirs(spec))
	all = len(spec.Mounts) + len(spec.Pins) + forLinks
	for _, m := range spec.Masks {
		if !m.Absent {
			all++
		}
	}
	return all, forLinks
}
