package sandbox

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/hostfs"
	"github.com/daycare-run/sandbox/pathmap"
	"github.com/daycare-run/sandbox/policy"
)

// home is a user's open home on the host, and who owns it.
type home struct {
	path     pathmap.HostPath
	uid, gid uint32
	id       dockerexec.FileID
	fd       int // the directory, for what is looked at as root
	root     *hostfs.Root
}

func (h home) close() {
	_ = unix.Close(h.fd)
	_ = h.root.Close()
}

// openHomeRoot opens a home for its owner.
func openHomeRoot(dir string, uid, gid uint32) (*hostfs.Root, error) {
	return hostfs.Open(hostfs.Config{Dir: dir, UID: uid, GID: gid, Denied: deniedInHome})
}

// deniedInHome is what no other name may reach.
var deniedInHome = policy.DeniedInHome()

// openMount opens a further mount for a home's owner. Its components may be a tenant's, so none may be
// a link.
func (s *Service) openMount(dir pathmap.HostPath, h home) (*hostfs.Root, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, dir.String(), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	root, err := hostfs.Open(hostfs.Config{Dir: dir.String(), UID: h.uid, GID: h.gid})
	if err != nil {
		return nil, err
	}
	info, err := root.Stat(".")
	if err == nil && (info.Dev != uint64(st.Dev) || info.Ino != st.Ino) {
		err = errors.New("it was exchanged just now")
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

// openHome finds a user's home, makes it if there is none, and opens it; the caller closes it. Every step is taken below usersDir
// without following a link that leads out of it.
func (s *Service) openHome(user UserID) (home, error) {
	path, err := s.homePath(user)
	if err != nil {
		return home{}, errors.New("cannot name the user's home")
	}
	users, err := os.OpenRoot(s.cfg.UsersDir)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(s.cfg.UsersDir, 0o755); err == nil {
			users, err = os.OpenRoot(s.cfg.UsersDir)
		}
	}
	if err != nil {
		return home{}, s.hidden("cannot open the folder of the users' homes", err)
	}
	defer users.Close()
	name := filepath.Join(user.id, "home")
	info, err := users.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		if err = s.makeHome(users, user); err == nil {
			info, err = users.Lstat(name)
		}
	}
	if err != nil {
		return home{}, s.hidden(fmt.Sprintf("cannot open the home of user %q", user), err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() {
		return home{}, fmt.Errorf("cannot use the home of user %q: it is not a directory", user)
	}
	if stat.Uid == 0 {
		return home{}, fmt.Errorf("cannot run commands for user %q: the home belongs to root, and commands run as its owner; the operator has to chown it to an unprivileged user", user)
	}
	h := home{path: path, uid: stat.Uid, gid: stat.Gid, id: dockerexec.FileID{Dev: uint64(stat.Dev), Ino: stat.Ino}}
	if h.fd, err = unix.Open(path.String(), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
		return home{}, s.hidden(fmt.Sprintf("cannot open the home of user %q", user), err)
	}
	if h.root, err = openHomeRoot(path.String(), h.uid, h.gid); err != nil {
		_ = unix.Close(h.fd)
		return home{}, s.hidden(fmt.Sprintf("cannot open the home of user %q", user), err)
	}
	return h, nil
}

// makeHome makes a user's home unless another call has just done it: to make it twice would replace
// the one that a container may have mounted by then.
func (s *Service) makeHome(users *os.Root, user UserID) error {
	s.makingHome.Lock()
	defer s.makingHome.Unlock()
	name := filepath.Join(user.id, "home")
	if _, err := users.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := users.Mkdir(user.id, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// Under a temporary name first, so that nobody ever finds it with the wrong owner.
	temporary := filepath.Join(user.id, ".home-"+rand.Text())
	if err := users.Mkdir(temporary, 0o700); err != nil {
		return err
	}
	err := errors.Join(users.Chmod(temporary, 0o750), users.Chown(temporary, int(s.cfg.HomeUID), int(s.cfg.HomeGID)))
	if err == nil {
		err = users.Rename(temporary, name)
	}
	if err != nil {
		_ = users.Remove(temporary)
	}
	return err
}

// hidden logs an error that names host paths and returns one that does not.
func (s *Service) hidden(message string, err error) error {
	s.log.Error().Err(err).Msg(message)
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
