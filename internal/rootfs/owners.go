package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
)

// Owners says who owns new homes: UID and GID own all of them or, if Last is not 0, each has an id
// of its own, as user and as group, from UID to Last. Then one tenant cannot use up for others what
// the kernel counts by user, such as inotify instances, even under a runtime that shares the host's
// kernel.
type Owners struct{ UID, GID, Last uint32 }

var errNoOwnerLeft = errors.New(
	"each id in homeOwner owns a home already; the operator has to widen the range")

// of returns the range from which the owner of a user's home is chosen. The pool, which nobody has
// asked for, does not get the last quarter of a range.
func (o Owners) of(user string) (Owners, error) {
	if o.Last == 0 || !(dockerexec.Spec{User: user}).IsPooled() {
		return o, nil
	}
	if o.Last == o.UID {
		return o, fmt.Errorf("%d is the only id, and the pool has to leave it to users: %w", o.UID,
			errNoOwnerLeft)
	}
	o.Last -= max((o.Last-o.UID+1)/4, 1)
	return o, nil
}

// allotted are the ids that homes have been given since the start. An id whose home is gone may
// still be that of a container, so it is given again as late as possible.
type allotted struct {
	latest uint32
	given  map[uint32]bool
}

// next chooses the owner of a home that is about to be made in usersDir. The ids that own a home
// there are taken. Only one call may choose at a time. Hosts that share usersDir pass claim, which
// reports whether this host gets an id; a host alone passes nil.
func (a *allotted) next(o Owners, usersDir string,
	claim func(id uint32) (bool, error)) (uid, gid uint32, err error) {
	if o.Last == 0 {
		return o.UID, o.GID, nil
	}
	taken, err := homeOwners(usersDir)
	if err != nil {
		return 0, 0, err
	}
	highest := a.latest
	for id := range taken {
		if id >= o.UID && id <= o.Last {
			highest = max(highest, id)
		}
	}
	choose := func(from uint32, free func(uint32) bool) bool {
		for id := uint64(max(from, o.UID)); id <= uint64(o.Last); id++ {
			if !free(uint32(id)) {
				continue
			}
			has := true
			if claim != nil {
				has, err = claim(uint32(id))
			}
			if has || err != nil {
				uid = uint32(id)
				return true
			}
		}
		return false
	}
	untouched := func(id uint32) bool { return !taken[id] && !a.given[id] }
	vacant := func(id uint32) bool { return !taken[id] }
	if (highest == o.Last || !choose(highest+1, untouched)) && !choose(o.UID, untouched) &&
		!choose(o.UID, vacant) {
		return 0, 0, fmt.Errorf("all of %d-%d are taken: %w", o.UID, o.Last, errNoOwnerLeft)
	}
	if err != nil {
		return 0, 0, err
	}
	if a.given == nil {
		a.given = map[uint32]bool{}
	}
	a.given[uid], a.latest = true, uid
	return uid, uid, nil
}

// homeOwners returns the ids of the users and groups that own homes. It follows no links.
func homeOwners(usersDir string) (map[uint32]bool, error) {
	taken := map[uint32]bool{}
	if err := addOwners(taken, usersDir, "home"); err != nil {
		return nil, err
	}
	// The homes of the pool are homes, too.
	if err := addOwners(taken, PoolDir(usersDir),
		filepath.Join(filepath.Base(dockerexec.PoolUser("x")), "home")); err != nil &&
		!errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	return taken, nil
}

// addOwners adds the owners of the homes in a folder's entries. For a home on a filesystem of its
// own, it takes what this host has cached: the filesystem may not answer, which must not affect
// other users.
func addOwners(taken map[uint32]bool, folder, home string) error {
	dir, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		var st unix.Statx_t
		err := unix.Statx(int(dir.Fd()),
			filepath.Join(name, home),
			unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC,
			unix.STATX_UID|unix.STATX_GID, &st)
		switch {
		case err == nil:
			taken[st.Uid], taken[st.Gid] = true, true
		case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR):
			return &os.PathError{Op: "stat", Path: filepath.Join(folder, name, home), Err: err}
		}
	}
	return nil
}
