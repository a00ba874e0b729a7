//go:build linux && (amd64 || arm64)

package spawn

import "syscall"

// Block makes a system call that is known to block, with up to four arguments. The runtime takes it
// to block from the start: other goroutines go on at once, rather than when the runtime looks for
// such calls, up to 10 ms later.
//
//go:uintptrescapes
//go:noinline
//go:norace
func Block(trap, a1, a2, a3, a4 uintptr) (result uintptr, errno syscall.Errno) {
	entersyscallblock()
	result, _, errno = syscall.RawSyscall6(trap, a1, a2, a3, a4, 0, 0)
	exitsyscall()
	return result, errno
}
