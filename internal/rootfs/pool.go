package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/pathmap"
)

// A container of the pool has a home before it has a user, alone in a folder that is like a user's.
// That folder lies in <usersDir>/.pool/<id>, which is closed to everyone but root. It is renamed as
// a whole to become the user's: a mount is of the directory, whatever its name. A rename never
// replaces a directory that is not empty, without any flag: network filesystems support none.

// PoolDir returns the pool's folder in usersDir.
func PoolDir(usersDir string) string {
	return filepath.Join(usersDir, filepath.Dir(filepath.Dir(dockerexec.PoolUser("x"))))
}

// makeUserDir makes the folder that is to hold a home.
func makeUserDir(users *os.Root, user string) error {
	if (dockerexec.Spec{User: user}).IsPooled() {
		pool, folder := filepath.Dir(filepath.Dir(user)), filepath.Dir(user)
		if err := makeDir(users, pool, 0o700); err != nil {
			return err
		}
		if err := checkPoolDir(users, pool); err != nil {
			return err
		}
		if err := makeDir(users, folder, 0o700); err != nil {
			return err
		}
	}
	return makeDir(users, user, 0o755)
}

// makeDir makes a directory if nothing has that name.
func makeDir(users *os.Root, name string, mode fs.FileMode) error {
	if err := users.Mkdir(name, mode); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// checkReplacing checks that the filesystem lets no directory replace one of the pool's that holds
// a home. If it does, the error is dockerexec.ErrHomesStay: then a user's home could be replaced,
// too.
func checkReplacing(users *os.Root, pooled string) error {
	dir, err := users.Open(filepath.Dir(pooled))
	if err != nil {
		return err
	}
	defer dir.Close()
	fd, name := int(dir.Fd()), ".empty"
	if err := unix.Mkdirat(fd, name, 0o700); err != nil {
		return err
	}
	err = renameDir(fd, name, fd, filepath.Base(pooled))
	if err == nil {
		return fmt.Errorf("%w: a directory can replace one that holds something",
			dockerexec.ErrHomesStay)
	}
	if removeErr := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); removeErr != nil ||
		!errors.Is(err, fs.ErrExist) {
		return errors.Join(err, removeErr)
	}
	return nil
}

// renameDir renames a directory to a free name, or over an empty directory. The error is
// fs.ErrExist if something else has the name. It uses rename(2) alone: os.Rename looks first.
func renameDir(fromDir int, from string, toDir int, to string) error {
	err := unix.Renameat(fromDir, from, toDir, to)
	if errors.Is(err, unix.ENOTDIR) { // a file or a link; ENOTEMPTY is fs.ErrExist
		return fmt.Errorf("%w: %w", fs.ErrExist, err)
	}
	return err
}

// spoolDir returns the user's folder, which holds the home. A pooled container's folder becomes the
// user's with nothing else in it, so what the container needs besides is in the folder above.
func (h *Home) spoolDir() string {
	dir := filepath.Dir(h.dir)
	if (dockerexec.Spec{User: h.user}).IsPooled() {
		return filepath.Dir(dir)
	}
	return dir
}

// CloseUserDir keeps everyone but root out of a user's folder on the host, whatever the user does
// to the home in it.
func (p *Planner) CloseUserDir(user string) error {
	fd, err := OpenBelow(p.cfg().UsersDir, user)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fchmodat(fd, ".", 0o700, 0)
}

// checkPoolDir refuses a folder of the pool that is not the service's alone.
func checkPoolDir(users *os.Root, pool string) error {
	var stat unix.Stat_t
	dir, err := users.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Fstatat(int(dir.Fd()), pool, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	const inherited = unix.S_ISGID // from usersDir, where that has it
	if stat.Mode&^inherited != unix.S_IFDIR|0o700 || int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf(
			"%s in usersDir is not a directory that belongs to the service and is closed to others: remove it",
			pool)
	}
	return nil
}

// HasFolder reports whether something is where a user's folder would be. Then the pool has no home
// for the user: somebody has made a folder without a home, with its owner and mode. The error is of
// class ErrUnavailable if the user's storage does not answer.
func (p *Planner) HasFolder(user string) (bool, error) {
	if _, err := p.askHome(user); err != nil {
		return false, err
	}
	return p.hasFolder(user), nil
}

func (p *Planner) hasFolder(user string) bool {
	_, err := os.Lstat(p.UserDir(user))
	return !errors.Is(err, fs.ErrNotExist)
}

// GiveHome renames the folder with a pooled container's home to that of a user who has none, as if
// it had been made now. The error is fs.ErrNotExist if the pooled folder does not exist,
// fs.ErrExist if the user has a folder, and dockerexec.ErrHomesStay if the filesystem cannot do it.
func (p *Planner) GiveHome(pooled, user string) error {
	p.making.Lock()
	defer p.making.Unlock()
	if p.hasFolder(user) {
		return fmt.Errorf("the user has a folder: %w", fs.ErrExist)
	}
	usersDir := p.cfg().UsersDir
	from, err := OpenBelow(usersDir, filepath.Dir(pooled))
	if err != nil {
		return err
	}
	defer unix.Close(from)
	users, err := os.OpenRoot(usersDir)
	if err != nil {
		return err
	}
	defer users.Close()
	to, err := users.Open(".")
	if err != nil {
		return err
	}
	defer to.Close()
	now := unix.NsecToTimespec(time.Now().UnixNano())
	home := filepath.Join(filepath.Base(pooled), "home")
	if err := unix.UtimesNanoAt(from, home, []unix.Timespec{now, now},
		unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	err = renameDir(from, filepath.Base(pooled), int(to.Fd()), user)
	switch {
	case errors.Is(err, unix.EXDEV): // a folder of the pool that is a mount point leads to another filesystem
		return fmt.Errorf("%w: it cannot rename a home: %w", dockerexec.ErrHomesStay, err)
	case err != nil || p.cfg().ClaimOwner == nil:
		return err
	}
	// After a power cut, another host may hold the user, and then this one does not rename the home
	// again.
	return errors.Join(syncDir(users, user), to.Sync())
}

func syncDir(root *os.Root, name string) error {
	dir, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Rebind is for dockerexec.Config.Mounts: from now on, the directories of one Spec have the names
// of another.
func (p *Preparer) Rebind(from, to dockerexec.Spec) error {
	err := p.ask(to, answerLimit)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, point := range p.mountPoints(from) {
		if p.needed[point.name]--; p.needed[point.name] == 0 {
			delete(p.needed, point.name)
		}
	}
	for _, point := range p.mountPoints(to) {
		p.needed[point.name]++
	}
	fromDir, toDir := filepath.Join(p.usersDir, from.User), filepath.Join(p.usersDir, to.User)
	var moved []string
	for name := range p.made {
		if rest, ok := pathmap.CutDir(name, fromDir); ok {
			delete(p.made, name)
			moved = append(moved, filepath.Join(toDir, rest))
		}
	}
	for _, name := range moved {
		p.made[name] = true
	}
	known := p.mounted[from.Fingerprint()]
	delete(p.mounted, from.Fingerprint())
	p.mounted[to.Fingerprint()] = mounted{Spec: to, since: known.since,
		containers: known.containers}
	if err == nil {
		err = p.watchSpec(to) // before the other's are given up: no event is lost
	}
	p.unwatch(from)
	return err
}
