//go:build linux && (amd64 || arm64)

package seccomp

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// call is a system call as a filter sees it.
type call struct {
	number, arch uint32
	argument     uint64
}

// data is struct seccomp_data, in the order of bytes in which bpf.VM reads.
func (c call) data() []byte {
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[offsetNumber:], c.number)
	binary.BigEndian.PutUint32(data[offsetArch:], c.arch)
	binary.BigEndian.PutUint32(data[offsetArgument:], uint32(c.argument))
	binary.BigEndian.PutUint32(data[offsetArgument+4:], uint32(c.argument>>32))
	return data
}

func TestFilter(t *testing.T) {
	const yes, no, none = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM), unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	const family = unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)
	const other = unix.AUDIT_ARCH_I386
	for _, tt := range []struct {
		name          string
		call          call
		alone, spaced uint32 // without and with user namespaces
	}{
		{"read", call{number: unix.SYS_READ}, yes, yes},
		{"ptrace", call{number: unix.SYS_PTRACE}, yes, yes},
		{"seccomp", call{number: unix.SYS_SECCOMP}, yes, yes},
		{"fork by clone", call{number: unix.SYS_CLONE, argument: uint64(unix.SIGCHLD)}, yes, yes},
		{"a thread", call{number: unix.SYS_CLONE, argument: unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_THREAD}, yes, yes},
		{"vfork by clone", call{number: unix.SYS_CLONE, argument: unix.CLONE_VM | unix.CLONE_VFORK | uint64(unix.SIGCHLD)}, yes, yes},
		{"user namespace by clone", call{number: unix.SYS_CLONE, argument: unix.CLONE_NEWUSER | uint64(unix.SIGCHLD)}, no, yes},
		{"and a bit that nobody looks at", call{number: unix.SYS_CLONE, argument: 1<<32 | unix.CLONE_NEWNS}, no, yes},
		{"a sibling", call{number: unix.SYS_CLONE, argument: unix.CLONE_PARENT | uint64(unix.SIGCHLD)}, no, no},
		{"a sibling by vfork", call{number: unix.SYS_CLONE, argument: unix.CLONE_PARENT | unix.CLONE_VM | unix.CLONE_VFORK}, no, no},
		{"a sibling in a namespace", call{number: unix.SYS_CLONE, argument: unix.CLONE_PARENT | unix.CLONE_NEWUSER}, no, no},
		{"clone3", call{number: unix.SYS_CLONE3}, none, none},
		{"unshare of files", call{number: unix.SYS_UNSHARE, argument: unix.CLONE_FILES}, yes, yes},
		{"user namespace", call{number: unix.SYS_UNSHARE, argument: unix.CLONE_NEWUSER}, no, yes},
		{"mount namespace", call{number: unix.SYS_UNSHARE, argument: unix.CLONE_NEWNS | unix.CLONE_FS}, no, yes},
		{"pid namespace", call{number: unix.SYS_UNSHARE, argument: unix.CLONE_NEWPID}, no, yes},
		{"network namespace", call{number: unix.SYS_UNSHARE, argument: unix.CLONE_NEWNET}, no, yes},
		{"IPC namespace", call{number: unix.SYS_UNSHARE, argument: unix.CLONE_NEWIPC}, no, yes},
		{"UTS namespace", call{number: unix.SYS_UNSHARE, argument: unix.CLONE_NEWUTS}, no, yes},
		{"cgroup namespace", call{number: unix.SYS_UNSHARE, argument: unix.CLONE_NEWCGROUP}, no, yes},
		{"time namespace", call{number: unix.SYS_UNSHARE, argument: unix.CLONE_NEWTIME}, no, yes},
		{"mount", call{number: unix.SYS_MOUNT}, no, yes},
		{"detached tree", call{number: unix.SYS_OPEN_TREE}, no, yes},
		{"file handle", call{number: unix.SYS_OPEN_BY_HANDLE_AT}, no, no},
		{"fanotify", call{number: unix.SYS_FANOTIFY_INIT}, no, no},
		{"keys", call{number: unix.SYS_KEYCTL}, no, no},
		{"bpf", call{number: unix.SYS_BPF}, no, no},
		{"io_uring", call{number: unix.SYS_IO_URING_SETUP}, no, no},
		{"a Unix socket", call{number: unix.SYS_SOCKET, argument: unix.AF_UNIX}, yes, yes},
		{"TCP", call{number: unix.SYS_SOCKET, argument: unix.AF_INET}, yes, yes},
		{"TCP over IPv6", call{number: unix.SYS_SOCKET, argument: unix.AF_INET6}, yes, yes},
		{"netlink", call{number: unix.SYS_SOCKET, argument: unix.AF_NETLINK}, yes, yes},
		{"packets", call{number: unix.SYS_SOCKET, argument: unix.AF_PACKET}, yes, yes},
		{"the machine around the host", call{number: unix.SYS_SOCKET, argument: unix.AF_VSOCK}, family, family},
		{"and a bit that nobody looks at", call{number: unix.SYS_SOCKET, argument: 1<<32 | unix.AF_VSOCK}, family, family},
		{"the kernel's ciphers", call{number: unix.SYS_SOCKET, argument: unix.AF_ALG}, family, family},
		{"a family that nobody knows", call{number: unix.SYS_SOCKET, argument: 4000}, family, family},
		{"a pair", call{number: unix.SYS_SOCKETPAIR, argument: unix.AF_UNIX}, yes, yes},
		{"a pair of another family", call{number: unix.SYS_SOCKETPAIR, argument: unix.AF_TIPC}, family, family},
		{"one that nobody knows", call{number: newest + 1}, none, none},
		{"x32", call{number: 0x40000000 | unix.SYS_READ}, none, none},
		{"x32's mount", call{number: 0x40000000 | unix.SYS_MOUNT}, none, none},
		{"of 32 bits", call{number: 3, arch: other}, none, none},
		{"mount of 32 bits", call{number: 21, arch: other}, none, none},
	} {
		if tt.call.arch == 0 {
			tt.call.arch = nativeArch
		}
		for namespaces, want := range map[bool]uint32{false: tt.alone, true: tt.spaced} {
			vm, err := bpf.NewVM(filter(namespaces))
			if err != nil {
				t.Fatal(err)
			}
			got, err := vm.Run(tt.call.data())
			if err != nil || uint32(got) != want {
				t.Errorf("%s, user namespaces %t: %#x, want %#x: %v", tt.name, namespaces, got, want, err)
			}
		}
	}
}

// A call is allowed after a few steps, and every call that is not simply allowed has its rule.
func TestEachNumber(t *testing.T) {
	const most = 13
	looked := []uint32{unix.SYS_CLONE, unix.SYS_UNSHARE, unix.SYS_SOCKET, unix.SYS_SOCKETPAIR} // at their arguments, too
	for number := range uint32(newest + 1) {
		program := filter(false)
		vm, err := bpf.NewVM(program)
		if err != nil {
			t.Fatal(err)
		}
		got, err := vm.Run(call{number: number, arch: nativeArch}.data())
		if err != nil {
			t.Fatal(err)
		}
		switch listed := slices.Contains(never, number) || slices.Contains(mounting, number); {
		case listed != (uint32(got) == refused.Val):
			t.Errorf("call %d: %#x, listed %t", number, got, listed)
		case uint32(got) == allow.Val && !slices.Contains(looked, number) && steps(program, number) > most:
			t.Errorf("call %d is allowed after %d steps, more than %d", number, steps(program, number), most)
		}
	}
}

// steps is how many instructions run for a call whose number decides.
func steps(program []bpf.Instruction, number uint32) (count int) {
	for at := 0; ; at, count = at+1, count+1 {
		switch jump := program[at].(type) {
		case bpf.RetConstant:
			return count + 1
		case bpf.JumpIf:
			taken := map[bpf.JumpTest]bool{
				bpf.JumpEqual: jump.Val == nativeArch, bpf.JumpNotEqual: number != jump.Val,
				bpf.JumpLessOrEqual: number <= jump.Val, bpf.JumpGreaterOrEqual: number >= jump.Val,
			}[jump.Cond]
			if taken {
				at += int(jump.SkipTrue)
			} else {
				at += int(jump.SkipFalse)
			}
		}
	}
}

// A process that has the filter, and what it starts, make no namespaces; everything else goes on.
func TestInstall(t *testing.T) {
	const inside = "TEST_INSTALL"
	if os.Getenv(inside) == "" {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestInstall$")
		cmd.Env = append(os.Environ(), inside+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if err := Install(false); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", "echo started").CombinedOutput(); err != nil || string(out) != "started\n" {
		t.Errorf("a program: %q, %v", out, err)
	}
	ended := make(chan error)
	go func() { ended <- unix.Unshare(unix.CLONE_NEWUTS) }() // on any thread, as root or not
	if err := <-ended; !errors.Is(err, unix.EPERM) {
		t.Errorf("unshare: %v", err)
	}
	if err := unix.Mount("none", "/nowhere", "tmpfs", 0, ""); !errors.Is(err, unix.EPERM) {
		t.Errorf("mount: %v", err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_CLONE3, 0, 0, 0); errno != unix.ENOSYS {
		t.Errorf("clone3: %v", errno)
	}
}
