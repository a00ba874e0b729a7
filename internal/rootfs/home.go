package rootfs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// Home is a user's open home on the host. The caller of OpenHome closes it.
type Home struct {
	planner  *Planner
	user     string
	dir      string // its path on the host, with the operator's links resolved
	uid, gid uint32 // its owner's
	id       dockerexec.FileID
	fd       int          // the directory, for what is done as root
	opened   *hostfs.Root // by root
}

// Close closes the home's descriptors.
func (h *Home) Close() {
	_ = unix.Close(h.fd)
	if h.opened != nil {
		_ = h.opened.Close()
	}
}

// root opens the home for what is done as its owner. Close closes it.
func (h *Home) root() (_ *hostfs.Root, err error) {
	if h.opened == nil {
		h.opened, err = hostfs.Open(h.rootConfig())
	}
	return h.opened, err
}

func (h *Home) rootConfig() hostfs.Config {
	return h.inDir(h.dir, deniedInHome)
}

// inDir returns the Config that opens a host directory for what is done as the home's owner.
func (h *Home) inDir(dir string, denied []string) hostfs.Config {
	return hostfs.Config{Dir: dir, UID: h.uid, GID: h.gid, Denied: denied, Walks: h.planner.walks,
		User: h.user}
}

// Usage returns hostfs.Root.Usage of the home.
func (h *Home) Usage() (used, free int64, err error) {
	root, err := h.root()
	if err != nil {
		return 0, 0, err
	}
	return root.Usage()
}

// MakeDir makes a directory of the home, with those above it, as the home's owner, unless it
// exists, and reports whether it has. Paths outside the home are left alone.
func (h *Home) MakeDir(path pathmap.ContainerPath) (made bool, _ error) {
	rest, ok := pathmap.CutDir(path.String(), policy.Home.String())
	if !ok || rest == "" {
		return false, nil
	}
	return h.makeDir(rest)
}

func (h *Home) makeDir(name string) (made bool, _ error) {
	if fd, err := openBeneath(h.fd, name, unix.O_PATH|unix.O_DIRECTORY); err == nil {
		return false, unix.Close(fd)
	}
	root, err := h.root()
	if err != nil {
		return false, err
	}
	err = root.Mkdir(name, true)
	return err == nil, err
}

// MakeDirIn makes a directory of a mount, with those above it, as the home's owner, unless it
// exists, and reports whether it has.
func (h *Home) MakeDirIn(at pathmap.Mount, rest string) (made bool, _ error) {
	if at.Container == policy.Home {
		return h.makeDir(rest)
	}
	dir := h.planner.real(at.Host)
	if err := h.planner.questions.ask(dir, "", true, answerLimit); err != nil {
		return false, err
	}
	root, err := openRoot(h.inDir(dir, nil))
	if err != nil {
		return false, err
	}
	defer root.Close()
	return root.MakeDir(rest, 0o755)
}

// MakeCaches makes .cache, with a directory tmp, in a directory of a mount, as the home's owner,
// unless it exists. It reports whether it is the owner's, and on a disk. A dry run makes nothing,
// and reports what would be expected.
func (h *Home) MakeCaches(at pathmap.Mount, rest string, dryRun bool) bool {
	host := h.planner.real(at.Host)
	if at.Container != policy.Home && h.planner.questions.ask(host, "", true, answerLimit) != nil {
		return false // whoever prepares the container says why
	}
	dir, err := openNoFollow(host)
	if err != nil {
		return false
	}
	defer unix.Close(dir)
	caches := path.Join(rest, ".cache")
	if dryRun {
		there, err := h.hasDir(dir, rest)
		if missing := errors.Is(err, unix.ENOENT); missing || !there {
			return missing && !isFileExtension(path.Ext(rest)) // as makeGranted has it
		}
		there, err = h.hasDir(dir, caches)
		return there || errors.Is(err, unix.ENOENT)
	}
	if has, _ := h.hasDir(dir, path.Join(caches, "tmp")); !has {
		_, err := h.hasDir(dir, caches)
		if err := h.makeCaches(at, caches, errors.Is(err, unix.ENOENT)); err != nil {
			return false
		}
	}
	has, _ := h.hasDir(dir, caches)
	return has
}

// hasDir reports whether a directory is the home's owner's, and on a disk.
func (h *Home) hasDir(dir int, name string) (bool, error) {
	fd, err := openBeneath(dir, name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	it, err := identifyOpen(fd)
	var st unix.Statfs_t
	err = errors.Join(err, unix.Fstatfs(fd, &st))
	return err == nil && it.uid == h.uid && it.mode&0o700 == 0o700 && st.Type != unix.TMPFS_MAGIC,
		err
}

func (h *Home) makeCaches(at pathmap.Mount, caches string, isNew bool) error {
	root, err := h.root()
	if at.Container != policy.Home {
		if root, err = openRoot(h.inDir(h.planner.real(at.Host), nil)); err == nil {
			defer root.Close()
		}
	}
	if err != nil {
		return err
	}
	// A home of the pool has no files, so that it can be removed.
	if err := root.Mkdir(path.Join(caches, "tmp"), true); err != nil || !isNew ||
		(dockerexec.Spec{User: h.user}).IsPooled() {
		return err
	}
	// In a working tree nobody wants to add them. Nothing depends on it, and another call may be
	// making it, too.
	if ignore, err := root.Create(path.Join(caches, ".gitignore"), hostfs.Exclusive,
		0o644); err == nil {
		defer ignore.Abort()
		if _, err := ignore.Write([]byte("*\n")); err == nil {
			_, _ = ignore.Commit()
		}
	}
	return nil
}

// OpenRoot opens a user's mount for operations on its files as the home's owner.
func (p *Planner) OpenRoot(ctx context.Context, user string,
	at pathmap.Mount) (*hostfs.Root, error) {
	h, err := p.OpenHome(ctx, user)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	if at.Container == policy.Home {
		return hostfs.Open(h.rootConfig())
	}
	if err := p.askMount(at); err != nil {
		return nil, err
	}
	root, err := openRoot(h.inDir(p.real(at.Host), nil))
	if err != nil {
		return nil, errs.NotFound("cannot open the mount %q: %v", at.Container,
			errs.WithoutPath(err))
	}
	return root, nil
}

// OpenHome opens a user's home, and makes it if there is none. No step below UsersDir follows a
// link that leads out of it.
func (p *Planner) OpenHome(ctx context.Context, user string) (*Home, error) {
	dir, err := p.askHome(user)
	if err != nil {
		return nil, err
	}
	h := &Home{planner: p, user: user, dir: dir}
	name := filepath.Join(user, "home")
	if h.fd, err = OpenBelow(p.cfg().UsersDir, name); errors.Is(err, unix.ENOENT) {
		if err = p.makeHome(user); err == nil {
			h.fd, err = OpenBelow(p.cfg().UsersDir, name)
		}
	}
	switch {
	case errors.Is(err, errNoOwnerLeft), errors.Is(err, dockerexec.ErrHomesStay):
		return nil, fmt.Errorf("cannot make the home of user %q: %w", user, err)
	case errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf(
			"cannot use the home of user %q: it is not a directory, or is behind a symbolic link",
			user)
	case err != nil:
		return nil, errs.Redact(ctx, p.log, fmt.Sprintf("cannot open the home of user %q", user),
			err)
	}
	it, err := identifyOpen(h.fd)
	if err != nil {
		h.Close()
		return nil, errs.Redact(ctx, p.log, fmt.Sprintf("cannot open the home of user %q", user),
			err)
	}
	if it.uid == 0 {
		h.Close()
		return nil, fmt.Errorf(
			"cannot run commands for user %q: the home belongs to root, and commands run as its owner; the operator has to chown it to an unprivileged user",
			user)
	}
	h.uid, h.gid, h.id = it.uid, it.gid, it.id
	return h, nil
}

// askHome returns the host path of a user's home, with the operator's links resolved, once what it
// is on has answered.
func (p *Planner) askHome(user string) (dir string, err error) {
	path, err := p.HomePath(user)
	if err != nil {
		return "", errors.New("cannot name the user's home")
	}
	dir = p.real(path)
	return dir, p.questions.ask(dir, fmt.Sprintf("the home of user %q", user), false, answerLimit)
}

// askMount fails if what is mounted does not answer. Who opens a home has asked that.
func (p *Planner) askMount(at pathmap.Mount) error {
	if at.Container == policy.Home {
		return nil
	}
	return p.questions.ask(p.real(at.Host),
		"the directory that is mounted at "+at.Container.String(), true, answerLimit)
}

// makeHome makes a user's home unless another call has just done so: a second home would replace
// the one that a container may have mounted by then.
func (p *Planner) makeHome(user string) error {
	p.making.Lock()
	defer p.making.Unlock()
	cfg := p.cfg()
	if err := os.MkdirAll(cfg.UsersDir, 0o755); err != nil {
		return err
	}
	users, err := os.OpenRoot(cfg.UsersDir)
	if err != nil {
		return err
	}
	defer users.Close()
	name := filepath.Join(user, "home")
	if _, err := users.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeUserDir(users, user); err != nil {
		return err
	}
	owners, err := cfg.HomeOwners.of(user)
	if err != nil {
		return err
	}
	var claim func(uint32) (bool, error)
	if cfg.ClaimOwner != nil {
		claim = func(id uint32) (bool, error) { return cfg.ClaimOwner(id, user) }
	}
	uid, gid, err := p.allotted.next(owners, cfg.UsersDir, claim)
	if err != nil {
		return err
	}
	// Under a temporary name first, so that nobody ever finds it with the wrong owner.
	temporary := filepath.Join(user, ".home-"+rand.Text())
	if err := users.Mkdir(temporary, 0o700); err != nil {
		return err
	}
	err = errors.Join(users.Chmod(temporary, 0o750), users.Chown(temporary, int(uid), int(gid)))
	if err == nil {
		err = users.Rename(temporary, name)
	}
	if err != nil {
		_ = users.Remove(temporary)
	}
	if err == nil && (dockerexec.Spec{User: user}).IsPooled() {
		err = checkReplacing(users, user)
	}
	return err
}
