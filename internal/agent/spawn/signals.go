//go:build linux && (amd64 || arm64)

package spawn

import (
	"fmt"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// action is the kernel's struct sigaction.
type action struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

const (
	lastSignal     = 64
	defaultHandler = 0 // SIG_DFL
	ignored        = 1 // SIG_IGN
)

// DefaultSignals gives up the signal handlers of Go's runtime, except those of the signals to keep.
// A fault then ends the program without a trace of its goroutines, and goroutines are not preempted
// by signals.
//
// SIGPIPE's handler is kept, so that a write to a closed pipe is an error and no more, and so are
// those of the three signals that thread libraries reserve: for a child these do nothing.
func DefaultSignals(keep ...syscall.Signal) error {
	for signal := syscall.Signal(1); signal <= lastSignal; signal++ {
		switch {
		case signal == unix.SIGKILL || signal == unix.SIGSTOP || signal == unix.SIGPIPE ||
			signal >= 32 && signal <= 34 || slices.Contains(keep, signal):
			continue
		}
		var old action
		if errno := sigaction(signal, nil, &old); errno != 0 {
			return fmt.Errorf("cannot give up the handler of signal %d: %w", signal, errno)
		}
		if old.handler == defaultHandler || old.handler == ignored {
			continue
		}
		if errno := sigaction(signal, &action{}, nil); errno != 0 {
			return fmt.Errorf("cannot give up the handler of signal %d: %w", signal, errno)
		}
	}
	return nil
}

func sigaction(signal syscall.Signal, now, old *action) syscall.Errno {
	_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal),
		uintptr(unsafe.Pointer(now)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
	return errno
}
