package hostfs

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
)

// owner is the identity under which a thread touches files: user and group, without supplementary
// groups or effective capabilities. The kernel checks fsuid; unlike the effective uid, it does not
// expose the service to the owner's signals and ptrace. setfsuid itself drops the capabilities over
// files, but not CAP_SYS_RESOURCE, which lets a write ignore the quota and the reserved blocks; so
// all are dropped.
type owner struct {
	uid, gid int
	// self says that the service is the owner, so nothing has to change.
	self bool
	// What do restores: the service's own, which are the same on all its threads.
	groups []int
	caps   capabilities
}

type capabilities [2]unix.CapUserData

func newOwner(uid, gid uint32) (owner, error) {
	if uid == ^uint32(0) || gid == ^uint32(0) {
		return owner{}, errs.Invalid("uid or gid -1 cannot own files")
	}
	o := owner{uid: int(uid), gid: int(gid)}
	if o.uid == os.Geteuid() && o.gid == os.Getegid() {
		o.self = true
		return o, nil
	}
	var err error
	if o.groups, err = unix.Getgroups(); err != nil {
		return owner{}, err
	}
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3},
		&o.caps[0]); err != nil {
		return owner{}, err
	}
	return o, o.do(func() error { return nil })
}

// do runs work as the owner, on a thread that does nothing else meanwhile. It must not be nested.
func (o *owner) do(work func() error) (err error) {
	if o.self {
		return work()
	}
	runtime.LockOSThread()
	defer func() {
		// A thread that cannot be restored stays locked, and the runtime ends it with the
		// goroutine.
		if failed := o.leave(); failed != nil {
			err = errors.Join(err, failed)
			return
		}
		runtime.UnlockOSThread()
	}()
	if err := o.enter(); err != nil {
		return err
	}
	return work()
}

// enter and leave use the calls of x/sys, which change one thread; those of syscall change all
// threads.
func (o *owner) enter() error {
	if len(o.groups) > 0 {
		if err := unix.Setgroups(nil); err != nil {
			return errs.Denied("the service may not act as the owner: setgroups")
		}
	}
	if err := setIDs(o.uid, o.gid); err != nil {
		return err
	}
	return o.capset(capabilities{
		{Permitted: o.caps[0].Permitted, Inheritable: o.caps[0].Inheritable},
		{Permitted: o.caps[1].Permitted, Inheritable: o.caps[1].Inheritable},
	})
}

// leave first restores the capabilities, which the other calls need. It does so twice, because the
// change of fsuid to 0 raises the capabilities over files, which the service may not have had.
func (o *owner) leave() error {
	err := o.capset(o.caps)
	if err == nil {
		err = setIDs(os.Geteuid(), os.Getegid())
	}
	if err == nil && len(o.groups) > 0 {
		err = unix.Setgroups(o.groups)
	}
	if err == nil {
		err = o.capset(o.caps)
	}
	if err != nil {
		return fmt.Errorf("the service cannot take its identity back: %w", err)
	}
	return nil
}

// setIDs checks the result: setfsuid reports no error. For an invalid id it returns the present
// one.
func setIDs(uid, gid int) error {
	_, _ = unix.SetfsgidRetGid(gid)
	_, _ = unix.SetfsuidRetUid(uid)
	isGID, _ := unix.SetfsgidRetGid(-1)
	isUID, _ := unix.SetfsuidRetUid(-1)
	if isUID != uid || isGID != gid {
		return errs.Denied("the service may not act as the owner %d:%d", uid, gid)
	}
	return nil
}

func (o *owner) capset(caps capabilities) error {
	return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0])
}
