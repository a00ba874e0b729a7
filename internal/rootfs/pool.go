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

// A container of the pool has a home before it has a user, in a folder that is like a user's and holds nothing else. What
// that lies in, <usersDir>/.pool/<id>, is closed to everyone but root. The whole folder is renamed to be the user's: a mount is of
// the directory, whatever its name. A directory replaces none that holds something, which needs no flag of a rename:
// filesystems in the network know none.

// PoolDir is the folder of the pool in a usersDir.
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

// makeDir makes a directory if there is nothing of that name.
func makeDir(users *os.Root, name string, mode fs.FileMode) error {
	if err := users.Mkdir(name, mode); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// checkReplacing makes sure that the filesystem lets no directory replace one of the pool that holds a home. The error is
// dockerexec.ErrHomesStay where it does: then a user's could be replaced, too.
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
		return fmt.Errorf("%w: a directory can replace one that holds something", dockerexec.ErrHomesStay)
	}
	if removeErr := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); removeErr != nil || !errors.Is(err, fs.ErrExist) {
		return errors.Join(err, removeErr)
	}
	return nil
}

// renameDir renames a directory to where nothing is, or an empty directory. The error is fs.ErrExist if something else is.
// It is rename(2) alone: os.Rename looks first.
func renameDir(fromDir int, from string, toDir int, to string) error {
	err := unix.Renameat(fromDir, from, toDir, to)
	if errors.Is(err, unix.ENOTDIR) { // a file or a link; ENOTEMPTY is fs.ErrExist
		return fmt.Errorf("%w: %w", fs.ErrExist, err)
	}
	return err
}

// spoolDir is the folder beside the home, which is the user's. Of a pooled container that becomes the user's with nothing else
// in it, so what the container has beside is above.
func (h *Home) spoolDir() string {
	dir := filepath.Dir(h.dir)
	if (dockerexec.Spec{User: h.user}).IsPooled() {
		return filepath.Dir(dir)
	}
	return dir
}

// CloseUserDir keeps everyone but root from a user's folder on the host, whatever the user makes of the home in it.
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
		return fmt.Errorf("%s in usersDir is not a directory of the service's that is closed to others: remove it", pool)
	}
	return nil
}

// HasFolder reports whether there is something where a user's folder is. Then the pool has no home for the user: a folder
// without a home is what somebody has made, with its owner and mode.
func (p *Planner) HasFolder(user string) bool {
	_, err := os.Lstat(p.UserDir(user))
	return !errors.Is(err, fs.ErrNotExist)
}

// GiveHome renames the folder with the home of a pooled container to be that of a user who has none, as if it had been made
// now. The error is fs.ErrNotExist if it is not there, fs.ErrExist if the user has one, and dockerexec.ErrHomesStay where the
// filesystem cannot do it.
func (p *Planner) GiveHome(pooled, user string) error {
	p.making.Lock()
	defer p.making.Unlock()
	if p.HasFolder(user) {
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
	if err := unix.UtimesNanoAt(from, home, []unix.Timespec{now, now}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	err = renameDir(from, filepath.Base(pooled), int(to.Fd()), user)
	switch {
	case errors.Is(err, unix.EXDEV): // a folder of the pool that is a mount point leads to another filesystem
		return fmt.Errorf("%w: it cannot rename a home: %w", dockerexec.ErrHomesStay, err)
	case err != nil || p.cfg().ClaimOwner == nil:
		return err
	}
	// After a power cut another host may hold the user, and this one may not rename the home again.
	return errors.Join(syncDir(users, user), to.Sync())
}

func syncDir(root *os.Root, name string) error {
	dir, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Rebind is for dockerexec.Config.Mounts: the directories of one Spec have the names of another from now on.
func (p *Preparer) Rebind(from, to dockerexec.Spec) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, point := range mountPoints(from) {
		if p.needed[point.name]--; p.needed[point.name] == 0 {
			delete(p.needed, point.name)
		}
	}
	for _, point := range mountPoints(to) {
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
	p.mounted[to.Fingerprint()] = mounted{Spec: to, since: known.since, containers: known.containers}
	err := p.watchSpec(to) // before the other's are given up: no event is lost
	p.unwatch(from)
	return err
}
