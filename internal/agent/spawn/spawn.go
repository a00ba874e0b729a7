//go:build linux && (amd64 || arm64)

// Package spawn starts a process as a child subreaper: whatever the process's descendants fork,
// also with setsid and a double fork, stays in the tree below it while it lives, and becomes a
// child of the caller (if that is a subreaper too) when it ends. So nothing that a command
// leaves behind can be mistaken for another command's.
//
// The subreaper attribute has to be set between fork and exec, by the child itself: it is kept
// across exec but not inherited (prctl(2), PR_SET_CHILD_SUBREAPER). os/exec has no place for
// that, and an intermediate program would cost a second exec, several milliseconds in gVisor. So
// this package has its own vfork.
//
// The program runs as another user than the caller. So from its setresuid to its exec other
// processes of that user may signal the child, which still has the caller's memory. Nobody can
// trace it, because it has the caller's capabilities until the exec. A signal must do nothing but
// end it, so the caller gives up the runtime's signal handlers (DefaultSignals), which would run in
// that memory. A process that stops the child delays only one start, because the caller goes on,
// and kills the child when that start's context ends.
package spawn

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Process describes what to start. All fields but Terminal, GiveOrphans and PID are needed.
type Process struct {
	// Programs are the places where the program may be: the first one that exists is executed.
	Programs []Program
	// Args are the arguments without the program's name.
	Args []string
	// Env is the whole environment as NAME=value.
	Env []string
	// Dir is the working directory. It is changed to as UID.
	Dir string
	// UID is the user that the process runs as, in the caller's groups; root is in its own group
	// alone. For a user other than its own the caller needs the capability SETUID, and for root
	// SETGID, too.
	UID uint32
	// Files become descriptors 0, 1, 2 and so on. They must be close-on-exec, and higher than what
	// they become.
	Files []int
	// Terminal makes the second of Files, a terminal, the controlling one of the process's session.
	Terminal bool
	// GiveOrphans makes the process no subreaper: what it orphans is the caller's at once. That is
	// for commands that live long and may leave zombies, if the caller need not tell whose an
	// orphan was.
	GiveOrphans bool
	// PID is where the kernel puts the child's pid before the child begins, for whoever sees the
	// pid meanwhile; nil for nowhere.
	PID *int32
}

// Program is a place where a program may be, and the name that it gets as its first argument.
type Program struct{ Path, Name string }

// Stage says how far the child came when it failed.
type Stage int

// The stages of a start. StageSearch means that none of the programs exists.
const (
	StageFork Stage = iota
	StagePrepare
	StageDir
	StageExec
	StageSearch
)

// Error is a failed start.
type Error struct {
	Stage Stage
	Errno syscall.Errno
}

func (e *Error) Error() string {
	return [...]string{"fork", "prepare", "chdir", "exec", "search"}[e.Stage] + ": " +
		e.Errno.Error()
}

func (e *Error) Unwrap() error { return e.Errno }

// Start runs the process in a session and process group of its own and returns its pid, which the
// caller must wait for, but not before Start returns. It blocks until the child has executed the
// program or failed: then it returns the pid beside an *Error, unless there was no fork. A child
// that has not executed the program when the context ends, for example because it is stopped, is
// killed: that is an *Error with ETIME.
func Start(ctx context.Context, p Process) (int, error) {
	c, err := newChild(p)
	if err != nil {
		return 0, err
	}
	defer context.AfterFunc(ctx, c.expire)()
	pid, errno := c.vfork()
	expired := c.finish()
	if errno != 0 {
		return 0, &Error{StageFork, errno}
	}
	if expired && c.errno == 0 {
		c.errno = syscall.ETIME
	}
	if c.errno != 0 {
		return int(pid), &Error{c.stage, c.errno}
	}
	return int(pid), nil
}

// child is what the forked child works with; it lives on the heap because parent and child share
// memory until the exec, and only the heap is safe from both using one stack.
type child struct {
	programs []program
	env      []*byte
	dir      *byte
	uid      uintptr
	files    []int
	reaps    uintptr // 1 for a subreaper, or 0
	owns     uintptr // 1 for a controlling terminal, or 0
	none     uint64  // no signal
	all      uint64  // every signal
	before   uint64  // the signals that the parent's thread blocks
	stage    Stage
	errno    syscall.Errno

	pid *int32

	mu      sync.Mutex
	expired bool // it was killed
	done    bool // its pid may be another process's
}

type program struct {
	path *byte
	argv []*byte
}

func newChild(p Process) (*child, error) {
	c := &child{files: p.Files, reaps: 1, uid: uintptr(p.UID), all: ^uint64(0),
		pid: cmp.Or(p.PID, new(int32))}
	if p.GiveOrphans {
		c.reaps = 0
	}
	if p.Terminal {
		c.owns = 1
	}
	var err error
	if c.dir, err = syscall.BytePtrFromString(p.Dir); err != nil {
		return nil, err
	}
	if c.env, err = syscall.SlicePtrFromStrings(p.Env); err != nil {
		return nil, err
	}
	args, err := syscall.SlicePtrFromStrings(p.Args)
	if err != nil {
		return nil, err
	}
	return c, c.addPrograms(p.Programs, args)
}

// addPrograms makes an argv for each name; the arguments themselves are shared.
func (c *child) addPrograms(programs []Program, args []*byte) error {
	var argv []*byte
	for i, p := range programs {
		if i == 0 || p.Name != programs[i-1].Name {
			name, err := syscall.BytePtrFromString(p.Name)
			if err != nil {
				return err
			}
			argv = append([]*byte{name}, args...)
		}
		path, err := syscall.BytePtrFromString(p.Path)
		if err != nil {
			return err
		}
		c.programs = append(c.programs, program{path, argv})
	}
	if len(c.programs) == 0 {
		return &Error{StageFork, syscall.EINVAL}
	}
	return nil
}

// expire kills a child that takes too long, as soon as it has been forked.
func (c *child) expire() {
	for !c.kill() {
		time.Sleep(time.Millisecond)
	}
}

// kill kills the child, if there is one, and reports whether there is nothing left to do.
func (c *child) kill() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if pid := atomic.LoadInt32(c.pid); !c.done && pid > 0 {
		c.expired = unix.Kill(int(pid), unix.SIGKILL) == nil
	}
	return c.done || c.expired
}

// finish reports whether the child was killed.
func (c *child) finish() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = true
	return c.expired
}

// vfork returns in the parent only, once the child has executed a program or ended. To the runtime
// it is a blocking system call, so that other goroutines go on.
//
// From the fork to the exec the child runs on the parent's stack and in its memory: no function
// it calls may grow the stack, allocate, or be instrumented.
//
//go:noinline
//go:norace
//go:nocheckptr
func (c *child) vfork() (pid uintptr, errno syscall.Errno) {
	entersyscallblock()
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK,
		uintptr(unsafe.Pointer(&c.all)), uintptr(unsafe.Pointer(&c.before)), 8, 0, 0)
	pid, errno = rawVfork(unix.CLONE_VFORK|unix.CLONE_VM|unix.CLONE_PARENT_SETTID|uintptr(
		unix.SIGCHLD), c.pid)
	if errno == 0 && pid == 0 {
		c.run()
		for {
			syscall.RawSyscall(syscall.SYS_EXIT, 127, 0, 0)
		}
	}
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK,
		uintptr(unsafe.Pointer(&c.before)), 0, 8, 0, 0)
	exitsyscall()
	return pid, errno
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
	_, _, c.errno = syscall.RawSyscall6(syscall.SYS_PRCTL, unix.PR_SET_CHILD_SUBREAPER, c.reaps, 0,
		0, 0, 0)
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
		if _, _, c.errno = syscall.RawSyscall(syscall.SYS_IOCTL, 1, unix.TIOCSCTTY,
			0); c.errno != 0 {
			return
		}
	}
	// Signals are let in while the child is still the caller's user, so that none is pending here.
	_, _, c.errno = syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK,
		uintptr(unsafe.Pointer(&c.none)), 0, 8, 0, 0)
	if c.errno != 0 {
		return
	}
	if c.uid == 0 {
		if _, _, c.errno = syscall.RawSyscall(syscall.SYS_SETGROUPS, 0, 0, 0); c.errno != 0 {
			return
		}
		if _, _, c.errno = syscall.RawSyscall(syscall.SYS_SETRESGID, 0, 0, 0); c.errno != 0 {
			return
		}
	}
	if _, _, c.errno = syscall.RawSyscall(syscall.SYS_SETRESUID, c.uid, c.uid,
		c.uid); c.errno != 0 {
		return
	}
	c.stage = StageDir
	_, _, c.errno = syscall.RawSyscall(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(c.dir)), 0, 0)
	if c.errno != 0 {
		return
	}
	c.stage = StageExec
	c.exec()
}

// exec executes the first program that exists, as execvp(3) does: one that may not be executed is
// passed over, too.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (c *child) exec() {
	denied := false
	for i := 0; i < len(c.programs); i++ {
		c.errno = 0 // a call that succeeds does not return
		_, _, c.errno = syscall.RawSyscall(syscall.SYS_EXECVE,
			uintptr(unsafe.Pointer(c.programs[i].path)),
			uintptr(unsafe.Pointer(&c.programs[i].argv[0])), uintptr(unsafe.Pointer(&c.env[0])))
		switch c.errno {
		case syscall.EACCES:
			denied = true
		case syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP, syscall.ENAMETOOLONG:
		default:
			return
		}
	}
	switch {
	case denied:
		c.errno = syscall.EACCES
		return
	case len(c.programs) == 1 && c.errno != syscall.ENOENT:
		return
	}
	// Either a script exists whose interpreter does not, or none of the programs exists.
	c.errno = syscall.ENOENT
	for i := 0; i < len(c.programs); i++ {
		_, _, missing := syscall.RawSyscall6(unix.SYS_FACCESSAT, atCWD,
			uintptr(unsafe.Pointer(c.programs[i].path)), unix.F_OK, 0, 0, 0)
		if missing == 0 {
			return
		}
	}
	c.stage = StageSearch
}

// atCWD is AT_FDCWD as an argument.
const atCWD = ^uintptr(-unix.AT_FDCWD - 1)

// rawVfork is clone(2) with the given flags and the place for the child's pid. The return address
// is kept in a register, because the child overwrites the stack that it would be on.
//
//go:noescape
func rawVfork(flags uintptr, tid *int32) (pid uintptr, errno syscall.Errno)

// The runtime keeps these functions for programs that make system calls by themselves
// (go.dev/issue/67401).

//go:linkname entersyscallblock runtime.entersyscallblock
func entersyscallblock()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()
