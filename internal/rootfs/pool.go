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

// A container of the pool has a home before it has a user. The home lies in <usersDir>/.pool/<id>, which is closed to
// everyone but root, and is renamed to be the user's: a mount is of the directory, whatever its name.

// makeUserDir makes the folder that is to hold a home.
func makeUserDir(users *os.Root, user string) error {
	mode := fs.FileMode(0o755)
	if (dockerexec.Spec{User: user}).IsPooled() {
		mode = 0o700
		pool := filepath.Dir(user)
		if err := users.Mkdir(pool, mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := checkPoolDir(users, pool); err != nil {
			return err
		}
	}
	if err := users.Mkdir(user, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
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

// HasHome reports whether there is something where a user's home is.
func (p *Planner) HasHome(user string) bool {
	_, err := os.Lstat(filepath.Join(p.UserDir(user), "home"))
	return !errors.Is(err, fs.ErrNotExist)
}

// GiveHome renames the home of a pooled container to be that of a user who has none, as if it had been made now. The error
// is fs.ErrNotExist if it is not there, fs.ErrExist if the user has one, and dockerexec.ErrHomesStay where the file system
// cannot do it.
func (p *Planner) GiveHome(pooled, user string) error {
	p.making.Lock()
	defer p.making.Unlock()
	usersDir := p.cfg().UsersDir
	from, err := OpenBelow(usersDir, pooled)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	users, err := os.OpenRoot(usersDir)
	if err != nil {
		return err
	}
	defer users.Close()
	if err := makeUserDir(users, user); err != nil {
		return err
	}
	to, err := OpenBelow(usersDir, user)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	now := unix.NsecToTimespec(time.Now().UnixNano())
	if err := unix.UtimesNanoAt(from, "home", []unix.Timespec{now, now}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	err = unix.Renameat2(from, "home", to, "home", unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EXDEV):
		// NFS for one has no such rename; a folder of the pool that is a mount point leads to another file system.
		return fmt.Errorf("%w: it cannot rename a home to where none is: %w", dockerexec.ErrHomesStay, err)
	case err != nil || p.cfg().ClaimOwner == nil:
		return err
	}
	// After a power cut another host may hold the user, and this one may not rename the home again.
	return errors.Join(syncDir(users, user), syncDir(users, "."))
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
	p.mounted[to.Fingerprint()] = mounted{Spec: to, since: known.since}
	err := p.watchSpec(to) // before the other's are given up: no event is lost
	p.unwatch(from)
	return err
}
