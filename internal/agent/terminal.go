//go:build linux

package agent

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// endOfFile is what a person types at a terminal to end the input (termios(3), VEOF).
const endOfFile = 0x04

// openTerminal opens a pseudo-terminal, whose far side is the command's three files, or its outputs
// alone if there is no stdin. The near side has one descriptor each for output, for stdin and for
// everything else, because they are closed at different times.
//
// The terminal belongs to the user uid.
func openTerminal(stdin bool, size *specs.Box, uid uint32, devNull int) (_ *pipes, err error) {
	p := &pipes{child: [3]int{-1, -1, -1}, devNull: devNull}
	defer func() {
		if err != nil {
			p.close()
			err = fmt.Errorf("cannot open a terminal: %w", err)
		}
	}()
	// Without O_NOCTTY it could become the agent's own.
	near, err := openAs(uid, "/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("/dev/ptmx: %w", err)
	}
	p.outputs[0] = &output{file: os.NewFile(uintptr(near), "terminal")}
	if p.terminal, err = duplicate(near); err != nil {
		return nil, err
	}
	if stdin {
		if p.stdin, err = duplicate(near); err != nil {
			return nil, err
		}
	}
	if err := unix.IoctlSetPointerInt(near, unix.TIOCSPTLCK, 0); err != nil {
		return nil, err
	}
	// By ioctl rather than by name, because /dev/pts is what image and runtime make of it.
	far, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(near), unix.TIOCGPTPEER,
		unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return nil, errno
	}
	p.child = [3]int{int(far), int(far), int(far)}
	if !stdin {
		p.child[0] = devNull
	}
	return p, resize(p.terminal, size)
}

// openAs opens a file with the rights of another user. Meanwhile that is this thread's effective
// user; for signals and tracers, its real and its saved user count.
func openAs(uid uint32, name string, flags int) (fd int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self := unix.Geteuid()
	if err := setEffective(int(uid)); err != nil {
		return -1, err
	}
	fd, err = unix.Open(name, flags, 0)
	if setEffective(self) != nil {
		os.Exit(1) // this thread must not go on as another user
	}
	// Changing the user resets this to the host's setting for programs that do so.
	return fd, errors.Join(err, unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}

// setEffective sets the effective user of the calling thread alone, as the system call does.
func setEffective(uid int) error {
	const same = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); errno != 0 {
		return errno
	}
	return nil
}

func duplicate(fd int) (*os.File, error) {
	twin, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(twin), "terminal"), nil
}

// resize sets a terminal's size. If it is a new one, the foreground process group gets SIGWINCH. A
// nil size does nothing.
func resize(terminal *os.File, size *specs.Box) error {
	if size == nil {
		return nil
	}
	raw, err := terminal.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ,
			&unix.Winsize{Row: uint16(size.Height), Col: uint16(size.Width)})
	})
	if failed != nil {
		return failed
	}
	return err
}

// endStdin sends the end of input to the command.
func (p *pipes) endStdin() {
	if p.terminal != nil {
		_, _ = p.stdin.Write([]byte{endOfFile})
		return
	}
	_ = p.stdin.Close()
}
