//go:build linux && (amd64 || arm64)

// Package spawn starts a process as a child subreaper: whatever the process's descendants fork,
// also with setsid and a double fork, stays in the tree below it while it lives, and becomes a
// child of the caller's (if that is a subreaper too) when it ends. So nothing that a command
// leaves behind can be mistaken for another command's.
//
// The subreaper attribute has to be set between fork and exec, by the child itself: it is kept
// across exec but not inherited (prctl(2), PR_SET_CHILD_SUBREAPER). os/exec has no place for
// that, and an intermediate program would cost a second exec, several milliseconds in gVisor. So
// this package has its own vfork, written after the one in Go's syscall package.
package spawn

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Process describes what to start. All fields but Terminal and GiveOrphans are needed.
type Process struct {
	// Path is the program's file; it is not searched for.
	Path string
	// Argv includes the program's name.
	Argv []string
	// Env is the whole environment as NAME=value.
	Env []string
	// Dir is the working directory.
	Dir string
	// Files become descriptors 0, 1 and 2. They must be close-on-exec and 3 or higher.
	Files [3]int
	// Terminal makes the first of Files, a terminal, the controlling one of the process's session.
	Terminal bool
	// GiveOrphans makes it no subreaper: what it orphans is the caller's at once. That is for a
	// caller with one command only, which for a long life may leave zombies to be collected.
	GiveOrphans bool
}

// Stage says how far the child came when it failed.
type Stage int

// The stages of a start.
const (
	StageFork Stage = iota
	StagePrepare
	StageDir
	StageExec
)

// Error is a failed start.
type Error struct {
	Stage Stage
	Errno syscall.Errno
}

func (e *Error) Error() string {
	return [...]string{"fork", "prepare", "chdir", "exec"}[e.Stage] + ": " + e.Errno.Error()
}

func (e *Error) Unwrap() error { return e.Errno }

// Start runs the process in a session and process group of its own and returns its pid, which
// the caller must wait for. It blocks until the child has executed the program or failed. When it
// returns an *Error the child has been waited for, unless the caller's own wait loop was faster.
func Start(p Process) (int, error) {
	c, err := newChild(p)
	if err != nil {
		return 0, err
	}
	pid, errno := c.vfork()
	if errno != 0 {
		return 0, &Error{StageFork, errno}
	}
	if c.errno != 0 {
		_, _ = syscall.Wait4(int(pid), nil, 0, nil)
		return 0, &Error{c.stage, c.errno}
	}
	return int(pid), nil
}

// child is what the forked child works with; it lives on the heap because parent and child share
// memory until the exec, and only the heap is safe from both using one stack.
type child struct {
	path  *byte
	argv  []*byte
	env   []*byte
	dir   *byte
	files [3]int
	reaps uintptr // 1 for a subreaper, or 0
	owns  uintptr // 1 for a controlling terminal, or 0
	mask  uint64  // the signals that the program starts with blocked: none
	stage Stage
	errno syscall.Errno
}

func newChild(p Process) (*child, error) {
	c := &child{files: p.Files, reaps: 1}
	if p.GiveOrphans {
		c.reaps = 0
	}
	if p.Terminal {
		c.owns = 1
	}
	var err error
	if c.path, err = syscall.BytePtrFromString(p.Path); err != nil {
		return nil, err
	}
	if c.dir, err = syscall.BytePtrFromString(p.Dir); err != nil {
		return nil, err
	}
	if c.argv, err = syscall.SlicePtrFromStrings(p.Argv); err != nil {
		return nil, err
	}
	c.env, err = syscall.SlicePtrFromStrings(p.Env)
	return c, err
}

// vfork returns in the parent only, once the child has gone its way.
//
// From the fork to the exec the child runs on the parent's stack and in its memory: no function
// it calls may grow the stack, allocate, or be instrumented.
//
//go:noinline
//go:norace
//go:nocheckptr
func (c *child) vfork() (pid uintptr, errno syscall.Errno) {
	beforeFork()
	pid, errno = rawVfork(unix.CLONE_VFORK | unix.CLONE_VM | uintptr(unix.SIGCHLD))
	if errno != 0 || pid != 0 {
		afterFork()
		return pid, errno
	}
	c.run()
	for {
		syscall.RawSyscall(syscall.SYS_EXIT, 127, 0, 0)
	}
}

// run does what a command needs and execs; it returns only when that failed.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (c *child) run() {
	c.stage = StagePrepare
	if _, _, c.errno = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0); c.errno != 0 {
		return
	}
	_, _, c.errno = syscall.RawSyscall6(syscall.SYS_PRCTL, unix.PR_SET_CHILD_SUBREAPER, c.reaps, 0, 0, 0, 0)
	if c.errno != 0 {
		return
	}
	for i := 0; i < len(c.files); i++ {
		_, _, c.errno = syscall.RawSyscall(syscall.SYS_DUP3, uintptr(c.files[i]), uintptr(i), 0)
		if c.errno != 0 {
			return
		}
	}
	if c.owns != 0 {
		if _, _, c.errno = syscall.RawSyscall(syscall.SYS_IOCTL, 0, unix.TIOCSCTTY, 0); c.errno != 0 {
			return
		}
	}
	c.stage = StageDir
	_, _, c.errno = syscall.RawSyscall(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(c.dir)), 0, 0)
	if c.errno != 0 {
		return
	}
	// beforeFork has blocked all signals. They are let through again with the runtime's handlers still
	// in place, which execve resets: resetting each here, as the syscall package does, takes some sixty
	// calls, a tenth of a start in gVisor. For a signal to come in between, somebody has to aim at
	// a pid that nobody has been told.
	_, _, c.errno = syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&c.mask)), 0, 8, 0, 0)
	if c.errno != 0 {
		return
	}
	c.stage = StageExec
	_, _, c.errno = syscall.RawSyscall(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(c.path)),
		uintptr(unsafe.Pointer(&c.argv[0])), uintptr(unsafe.Pointer(&c.env[0])))
}

// rawVfork is clone(2) with the given flags and nothing else. The return address is kept in a
// register, because the child overwrites the stack that it would be on.
//
//go:noescape
func rawVfork(flags uintptr) (pid uintptr, errno syscall.Errno)

// The runtime keeps these for programs that fork by themselves (go.dev/issue/67401).

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()
