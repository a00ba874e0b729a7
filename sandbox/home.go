package sandbox

import (
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
		if err = s.makeHome(users, user, name); err == nil {
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

func (s *Service) makeHome(users *os.Root, user UserID, name string) error {
	if err := users.Mkdir(user.id, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// Under a temporary name first, so that nobody ever finds it with the wrong owner.
	temporary, err := os.MkdirTemp(filepath.Join(users.Name(), user.id), ".home-*")
	if err != nil {
		return err
	}
	temporary = filepath.Join(user.id, filepath.Base(temporary))
	err = errors.Join(users.Chmod(temporary, 0o750), users.Chown(temporary, int(s.cfg.HomeUID), int(s.cfg.HomeGID)))
	if err == nil {
		err = users.Rename(temporary, name)
	}
	if err != nil {
		_ = users.Remove(temporary)
	}
	if _, statErr := users.Lstat(name); statErr == nil {
		return nil // made, perhaps by another call at the same time
	}
	return err
}

// hidden logs an error that names host paths and returns one that does not.
func (s *Service) hidden(message string, err error) error {
	s.log.Error().Err(err).Msg(message)
	var plain *fs.PathError
	if errors.As(err, &plain) {
		err = plain.Err
	}
	return fmt.Errorf("%s: %v", message, err)
}
