//go:build linux

package agent

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/spawn"
)

// siginfo is the part of siginfo_t that waitid(2) fills in, on 64-bit Linux.
type siginfo struct {
	signo, errno, code int32
	_                  int32
	pid                int32
	_                  [108]byte
}

// waitAny waits until any child has ended, or has stopped although nobody but the agent traces it,
// and leaves it to be collected.
func waitAny(info *siginfo) error {
	for {
		_, errno := spawn.Block(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(info)),
			unix.WEXITED|unix.WNOWAIT)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

// childless reports whether there is no child at all, living or not.
func childless() bool {
	return errors.Is(unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil),
		unix.ECHILD)
}
