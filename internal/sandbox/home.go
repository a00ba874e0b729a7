package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// home is a user's open home on the host, and who owns it.
type home struct {
	dir      string // where it really is
	uid, gid uint32
	id       dockerexec.FileID
	fd       int          // the directory, for what is looked at as root
	opened   *hostfs.Root // by root
}

func (h *home) close() {
	_ = unix.Close(h.fd)
	if h.opened != nil {
		_ = h.opened.Close()
	}
}

// root is the home for what is done as its owner. It is closed with h.
func (h *home) root() (_ *hostfs.Root, err error) {
	if h.opened == nil {
		h.opened, err = openHomeRoot(h.dir, h.uid, h.gid)
	}
	return h.opened, err
}

// makeDir makes a directory, with those above it, as the home's owner, if it is not there.
func (h *home) makeDir(name string) error {
	if fd, err := beneath(h.fd, name, unix.O_PATH|unix.O_DIRECTORY); err == nil {
		return unix.Close(fd)
	}
	root, err := h.root()
	if err != nil {
		return err
	}
	return root.Mkdir(name, true)
}

// openHomeRoot opens a home for its owner.
func openHomeRoot(dir string, uid, gid uint32) (*hostfs.Root, error) {
	return hostfs.Open(hostfs.Config{Dir: dir, UID: uid, GID: gid, Denied: deniedInHome})
}

// deniedInHome is what no other name may reach.
var deniedInHome = policy.DeniedInHome()

// openMount opens a further mount for a home's owner.
func (s *Service) openMount(dir pathmap.HostPath, h *home) (*hostfs.Root, error) {
	return openRoot(hostfs.Config{Dir: s.real(dir), UID: h.uid, GID: h.gid})
}

// openRoot opens a root whose components may be a tenant's, so none may be a link.
func openRoot(cfg hostfs.Config) (*hostfs.Root, error) {
	meant, err := identifyExactly(cfg.Dir)
	if err != nil {
		return nil, err
	}
	root, err := hostfs.Open(cfg)
	if err != nil {
		return nil, err
	}
	info, err := root.Stat(".")
	if err == nil && !meant.id.Same(dockerexec.FileID{Dev: info.Dev, Ino: info.Ino}) {
		err = errors.New("it was exchanged just now")
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

// openHome finds a user's home, makes it if there is none, and opens it; the caller closes it. Every step is taken below usersDir
// without following a link that leads out of it.
func (s *Service) openHome(ctx context.Context, user UserID) (*home, error) {
	path, err := s.homePath(user)
	if err != nil {
		return nil, errors.New("cannot name the user's home")
	}
	h := &home{dir: s.real(path)}
	if h.fd, err = openBelow(s.cfg().UsersDir, filepath.Join(user.id, "home")); errors.Is(err, unix.ENOENT) {
		if err = s.makeHome(user); err == nil {
			h.fd, err = openBelow(s.cfg().UsersDir, filepath.Join(user.id, "home"))
		}
	}
	if errors.Is(err, errNoOwnerLeft) {
		return nil, fmt.Errorf("cannot make the home of user %q: %w", user, err)
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("cannot use the home of user %q: it is not a directory, or is behind a symbolic link", user)
	}
	if err != nil {
		return nil, s.hidden(ctx, fmt.Sprintf("cannot open the home of user %q", user), err)
	}
	it, err := identifyOpen(h.fd)
	if err != nil {
		h.close()
		return nil, s.hidden(ctx, fmt.Sprintf("cannot open the home of user %q", user), err)
	}
	if it.uid == 0 {
		h.close()
		return nil, fmt.Errorf("cannot run commands for user %q: the home belongs to root, and commands run as its owner; the operator has to chown it to an unprivileged user", user)
	}
	h.uid, h.gid, h.id = it.uid, it.gid, it.id
	return h, nil
}

// openBelow opens a directory, for its descriptor alone, without following a link below root.
func openBelow(root, name string) (int, error) {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	return beneath(fd, name, unix.O_PATH|unix.O_DIRECTORY)
}

// makeHome makes a user's home unless another call has just done it: to make it twice would replace
// the one that a container may have mounted by then.
func (s *Service) makeHome(user UserID) error {
	s.makingHome.Lock()
	defer s.makingHome.Unlock()
	if err := os.MkdirAll(s.cfg().UsersDir, 0o755); err != nil {
		return err
	}
	users, err := os.OpenRoot(s.cfg().UsersDir)
	if err != nil {
		return err
	}
	defer users.Close()
	name := filepath.Join(user.id, "home")
	if _, err := users.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := users.Mkdir(user.id, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	uid, gid, err := s.allotted.next(s.cfg().HomeOwners, s.cfg().UsersDir)
	if err != nil {
		return err
	}
	// Under a temporary name first, so that nobody ever finds it with the wrong owner.
	temporary := filepath.Join(user.id, ".home-"+rand.Text())
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
	return err
}

// hidden logs an error that names host paths and returns one that does not.
func (s *Service) hidden(ctx context.Context, message string, err error) error {
	log := zerolog.Ctx(ctx) // has the request's id, if a request it is
	if log.GetLevel() == zerolog.Disabled {
		log = &s.log
	}
	log.Error().Err(err).Msg(message)
	return fmt.Errorf("%s: %v", message, pathless(err))
}

// pathless is what has failed without where: callers are not told paths of the host.
func pathless(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &link):
		return link.Err
	}
	return err
}
