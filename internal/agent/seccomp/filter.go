//go:build linux && (amd64 || arm64)

package seccomp

import (
	"cmp"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// mounting are the calls that make, move and remove mounts and namespaces. Beside them, clone and
// unshare are refused if they have a flag for a namespace.
var mounting = []uint32{
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_SETNS,
	unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR, unix.SYS_MOVE_MOUNT, unix.SYS_MOUNT_SETATTR,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
}

// never are the calls that no command may make: they reach files without their names, or parts of
// the kernel that have had more faults than a command has uses for them.
var never = []uint32{
	unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT,
	unix.SYS_FANOTIFY_MARK, unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
	unix.SYS_BPF, unix.SYS_USERFAULTFD, unix.SYS_PERF_EVENT_OPEN,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
}

// families are the families of sockets that commands may make. They belong to the container's
// network. Some of the others lead past it (AF_VSOCK to the machine that the host runs on, and to
// whatever listens in any other container), and all lead to parts of the kernel like those above.
var families = []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK, unix.AF_PACKET}

// newest is the last call that this filter was written for. It answers a later one as if that did
// not exist.
const newest = unix.SYS_RSEQ_SLICE_YIELD

// namespaces are the flags of clone(2) and unshare(2) for a namespace. CLONE_NEWTIME is a flag of
// unshare alone: in the flags of clone its bit is part of a signal's number.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// siblings is the flag of clone(2) that gives the new process the caller's parent. A command's
// first process could make the agent the parent of what the agent has not started and does not look
// for, so that would outlive the command. No setting allows it, nor clone3, whose flags a filter
// cannot see: without that the C libraries use clone.
const siblings = unix.CLONE_PARENT

// Where struct seccomp_data has what a filter looks at. Of the first argument that is the lower
// half, which is all that these calls use.
const (
	offsetNumber   = 0
	offsetArch     = 4
	offsetArgument = 16
)

var (
	allow    = bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	refused  = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	unknown  = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}
	noFamily = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)}
)

// filter returns the program. For all but four calls its answer depends on the call's number alone,
// so that Linux and gVisor can cache it. It answers calls of another architecture's table (32 bits,
// x32) as if they did not exist.
func filter(userNamespaces bool) []bpf.Instruction {
	var rules []rule
	refuse := func(numbers []uint32) {
		for _, number := range numbers {
			rules = append(rules, rule{number, []bpf.Instruction{refused}})
		}
	}
	refuse(never)
	rules = append(rules, rule{unix.SYS_SOCKET, known(families)},
		rule{unix.SYS_SOCKETPAIR, known(families)},
		rule{unix.SYS_CLONE3, []bpf.Instruction{unknown}})
	if userNamespaces {
		rules = append(rules, rule{unix.SYS_CLONE, flagged(siblings)})
	} else {
		refuse(mounting)
		rules = append(rules, rule{unix.SYS_CLONE, flagged(siblings | namespaces)},
			rule{unix.SYS_UNSHARE, flagged(namespaces | unix.CLONE_NEWTIME)})
	}
	slices.SortFunc(rules, func(a, b rule) int { return cmp.Compare(a.number, b.number) })
	return append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: nativeArch, SkipTrue: 1},
		unknown,
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: newest, SkipTrue: 1},
		unknown,
	}, search(rules)...)
}

// rule answers a call that is not simply allowed.
type rule struct {
	number  uint32
	program []bpf.Instruction
}

// search finds a call's rule in sorted rules by binary search. gVisor fills its cache by running
// the program for every number, anew for each process and thread that starts, so the way to allow
// has to be short.
func search(rules []rule) []bpf.Instruction {
	if len(rules) == 1 {
		other := bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: rules[0].number,
			SkipTrue: uint8(len(rules[0].program))}
		return slices.Concat([]bpf.Instruction{other}, rules[0].program, []bpf.Instruction{allow})
	}
	below, above := rules[:len(rules)/2], rules[len(rules)/2:]
	first := search(below)
	second := bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: above[0].number,
		SkipTrue: uint8(len(first))}
	return slices.Concat([]bpf.Instruction{second}, first, search(above))
}

// flagged refuses a call whose first argument has one of the bits set.
func flagged(bits uint32) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArgument, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: bits, SkipFalse: 1},
		refused,
		allow,
	}
}

// known refuses a call whose first argument is not in a list.
func known(list []uint32) []bpf.Instruction {
	program := []bpf.Instruction{bpf.LoadAbsolute{Off: offsetArgument, Size: 4}}
	for i, value := range list {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: value,
			SkipTrue: uint8(len(list) - i)})
	}
	return append(program, noFamily, allow)
}

// assemble returns the program in the form that the kernel takes.
func assemble(program []bpf.Instruction) ([]unix.SockFilter, error) {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, err
	}
	filters := make([]unix.SockFilter, len(raw))
	for i, in := range raw {
		filters[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return filters, nil
}
