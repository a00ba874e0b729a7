package sandbox

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/daycare-run/sandbox/pathmap"
)

// home is a user's home on the host, and who owns it.
type home struct {
	path     pathmap.HostPath
	uid, gid uint32
}

// containerHome is where every user finds it.
const containerHome = "/home"

// openHome finds a user's home and makes it if there is none. Every step is taken below usersDir
// without following a link that leads out of it.
func (s *Service) openHome(user UserID) (home, error) {
	path, err := pathmap.ParseHost(filepath.Join(s.cfg.UsersDir, user.id, "home"))
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
	return home{path: path, uid: stat.Uid, gid: stat.Gid}, nil
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
