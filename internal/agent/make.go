//go:build linux

package agent

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// maker makes what is missing in directories of the owner's, for the tenant.
type maker struct {
	root          string // of the filesystem in which it may do so, without those mounted below
	owner, tenant uint32
}

// make makes the first that is missing of a path, as the tenant's. What is below that, the tenant
// can make.
func (l *persistent) make(m *control.Make) control.Answer {
	if m == nil || !path.IsAbs(m.Path) || path.Clean(m.Path) != m.Path {
		return control.Answer{Fault: wire.FaultAgent, Message: "the path is not absolute and clean"}
	}
	if err := (maker{"/", 0, l.uid}).make(m.Path, m.Dir); err != nil {
		return control.Answer{Fault: wire.FaultAgent, Message: err.Error()}
	}
	return control.Answer{}
}

// make leaves alone what is there already, what others than the owner have to do with (a link, a
// directory, a mount on the way), and what the agent itself may not see.
func (m maker) make(at string, dir bool) error {
	parent, name, last, err := m.missing(at)
	if err != nil || name == "" {
		return err
	}
	defer unix.Close(parent)
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: this thread's users are others than the process's
		made <- m.makeIn(parent, name, dir || !last)
	}()
	return <-made
}

// missing returns the directory in which something of a path is missing, and the name of that; last
// says that it is the end of the path. Links are not followed: they may be the tenant's, and lead
// anywhere.
func (m maker) missing(at string) (parent int, name string, last bool, err error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if parent, err = unix.Open(m.root, flags, 0); err != nil {
		return -1, "", false, err
	}
	mount, err := mountOf(parent)
	for rest := strings.Trim(at, "/"); err == nil && rest != ""; {
		name, rest, _ = strings.Cut(rest, "/")
		var next int
		if next, err = unix.Openat(parent, name, flags, 0); err != nil {
			last = rest == ""
			break
		}
		_ = unix.Close(parent)
		parent, name = next, ""
	}
	if errors.Is(err, unix.ENOENT) {
		if err = m.owns(parent, mount); err == nil {
			return parent, name, last, nil
		}
	}
	_ = unix.Close(parent)
	if err != nil {
		err = fmt.Errorf("cannot make %q: %w", at, err)
	}
	return -1, "", false, err
}

// mount identifies a mount: by its number, where the kernel tells it, and otherwise, as in gVisor,
// by its device.
type mount struct{ device, number uint64 }

func mountOf(dir int) (mount, error) {
	var st unix.Statx_t
	if err := unix.Statx(dir, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID,
		&st); err != nil {
		return mount{}, err
	}
	m := mount{device: unix.Mkdev(st.Dev_major, st.Dev_minor)}
	if st.Mask&unix.STATX_MNT_ID != 0 {
		m.number = st.Mnt_id
	}
	return m, nil
}

// owns refuses a directory that is not the owner's, or is on another mount: what is mounted is
// somebody's outside.
func (m maker) owns(dir int, root mount) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return err
	}
	is, err := mountOf(dir)
	if err == nil && (st.Uid != m.owner || is != root) {
		err = unix.EPERM
	}
	return err
}

// makeIn makes an empty file or a directory as the tenant, in a directory of its own, and moves it
// from there as the owner. So nobody needs the right to give files away, and nobody else can make
// anything in parent meanwhile. It needs a thread for itself. While the saved user is the owner,
// the thread can become either.
func (m maker) makeIn(parent int, name string, dir bool) error {
	agent := uint32(os.Getuid())
	if err := become(agent, m.owner, m.owner); err != nil {
		return err
	}
	stage := ".daycare-" + rand.Text()
	if err := unix.Mkdirat(parent, stage, 0o700); err != nil {
		return err
	}
	defer func() {
		_ = become(agent, m.owner, m.owner)
		_ = unix.Unlinkat(parent, stage, unix.AT_REMOVEDIR)
	}()
	in, err := unix.Openat(parent, stage,
		unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	if err := errors.Join(unix.Fchmod(in, 0o777), become(agent, m.tenant, m.owner)); err != nil {
		return err
	}
	made, err := makeAt(in, dir)
	if err != nil {
		return err
	}
	defer unix.Close(made)
	err = become(agent, m.owner, m.owner)
	if err == nil {
		err = unix.Renameat2(in, staged, parent, name, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		flags := 0
		if dir {
			flags = unix.AT_REMOVEDIR
		}
		_ = unix.Unlinkat(in, staged, flags)
		return err
	}
	mode := uint32(0o644)
	if dir {
		mode = 0o755
	}
	return errors.Join(become(agent, m.tenant, m.owner), unix.Fchmod(made, mode))
}

// staged is the name of what is made, until it is moved.
const staged = "new"

// makeAt makes it, for all to write: the owner moves a directory only if he may write to it.
func makeAt(in int, dir bool) (int, error) {
	if !dir {
		return unix.Openat(in, staged,
			unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	}
	if err := unix.Mkdirat(in, staged, 0o777); err != nil {
		return -1, err
	}
	made, err := unix.Openat(in, staged,
		unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Fchmod(made, 0o777)
	}
	return made, err
}

// become sets the users of this thread alone.
func become(real, effective, saved uint32) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(real), uintptr(effective),
		uintptr(saved)); errno != 0 {
		return os.NewSyscallError("setresuid", errno)
	}
	return nil
}
