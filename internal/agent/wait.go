//go:build linux

package agent

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// siginfo is the part of siginfo_t that waitid(2) fills in, on 64-bit Linux.
type siginfo struct {
	signo, errno, code int32
	_                  int32
	pid                int32
	_                  [108]byte
}

// waitAny is waitid(2) for any child.
func waitAny(info *siginfo, options int) error {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(info)), uintptr(options), 0, 0)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}
