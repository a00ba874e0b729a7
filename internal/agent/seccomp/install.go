//go:build linux && (amd64 || arm64)

package seccomp

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Install sets the filter for all threads of this process, and for whatever they start, for ever.
// With userNamespaces, mounts and namespaces can still be made by any call but clone3.
func Install(userNamespaces bool) error {
	program, err := assemble(filter(userNamespaces))
	if err != nil {
		return fmt.Errorf("cannot assemble the seccomp filter: %w", err)
	}
	// Without it only root may set a filter, and a program with the set-user-id bit would run under
	// it as root.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot set no_new_privs: %w", err)
	}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return fmt.Errorf("cannot set the seccomp filter: %w", errno)
	}
	if thread != 0 {
		return fmt.Errorf("cannot set the seccomp filter for thread %d", thread)
	}
	return nil
}
