package creds

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// numbers are the kernel's numbers of the capabilities in Needed.
var numbers = map[string]uintptr{
	"KILL": unix.CAP_KILL, "SETGID": unix.CAP_SETGID, "SETPCAP": unix.CAP_SETPCAP,
	"SETUID": unix.CAP_SETUID,
}

// Become turns a process that began as root into the agent's user, with the named capabilities in
// Needed and no others. Commands that it starts as IDs.UID lose these, too, at their exec and not
// sooner, so that nobody can trace a child that still has the agent's memory (ptrace(2), access
// mode checking). The returned IDs.Root says whether commands may run as root here: then they may
// reach the agent, and what it says is theirs.
func Become(keep ...string) (IDs, error) {
	ids, err := Parse(os.Getenv(Variable))
	if err != nil {
		return IDs{}, err
	}
	if ids.Root && slices.Contains(keep, "SETUID") {
		keep = append(keep, "SETGID") // starting commands as root takes setting their group, too
	} else {
		ids.Root = false
	}
	if err := become(ids, keep); err != nil {
		return IDs{}, fmt.Errorf("cannot become user %d: %w", Agent(ids.UID), err)
	}
	return ids, nil
}

func become(ids IDs, keep []string) error {
	var bounding error
	for _, name := range Needed {
		if !ids.Root && !slices.Contains(ids.Bounding, name) {
			bounding = errors.Join(bounding, prctl(unix.PR_CAPBSET_DROP, numbers[name]))
		}
	}
	if err := errors.Join(bounding, prctl(unix.PR_SET_KEEPCAPS, 1)); err != nil {
		return err
	}
	agent := int(Agent(ids.UID))
	if err := syscall.Setgroups([]int{int(ids.GID)}); err != nil {
		return err
	}
	if err := syscall.Setresgid(int(ids.GID), int(ids.GID), int(ids.GID)); err != nil {
		return err
	}
	if err := syscall.Setresuid(agent, agent, agent); err != nil {
		return err
	}
	return errors.Join(setCapabilities(keep, ids.Root), prctl(unix.PR_SET_KEEPCAPS, 0))
}

// prctl calls prctl(2) for all threads.
func prctl(option int, argument uintptr) error {
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, uintptr(option), argument, 0, 0, 0,
		0); errno != 0 {
		return os.NewSyscallError("prctl", errno)
	}
	return nil
}

// setCapabilities sets the permitted and effective sets of all threads, and empties the inheritable
// one. With permitted, the permitted set keeps what it has: under no-new-privs, a program executed
// as root gets no more than that (execve(2)).
func setCapabilities(names []string, permitted bool) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had, sets [2]unix.CapUserData
	if err := unix.Capget(&header, &had[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	for _, name := range names {
		number := numbers[name]
		sets[number/32].Effective |= 1 << (number % 32)
	}
	for i := range sets {
		sets[i].Permitted = sets[i].Effective
		if permitted {
			sets[i].Permitted |= had[i].Permitted
		}
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)),
		uintptr(unsafe.Pointer(&sets)), 0)
	if errno != 0 {
		return os.NewSyscallError("capset", errno)
	}
	return nil
}
