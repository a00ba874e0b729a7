package dockerexec

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/engine"
)

// namespaceCalls are the system calls that Docker's profile denies to commands, and that are of use
// to a command that may make user namespaces. The kernel judges them by the namespace in which they
// are made.
var namespaceCalls = []string{
	"chroot", "clone", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr",
	"move_mount", "open_tree", "open_tree_attr", "pivot_root", "setdomainname", "sethostname",
	"setns", "umount", "umount2", "unshare",
}

// namespaceProfile returns Docker's own seccomp profile with these calls allowed, in the form that
// its API takes.
var namespaceProfile = sync.OnceValue(func() string {
	profile := seccomp.DefaultProfile()
	for _, rule := range profile.Syscalls {
		rule.Names = slices.DeleteFunc(rule.Names, func(name string) bool {
			return slices.Contains(namespaceCalls, name)
		})
	}
	profile.Syscalls = slices.DeleteFunc(profile.Syscalls, func(rule *seccomp.Syscall) bool {
		return len(rule.Names) == 0
	})
	profile.Syscalls = append(profile.Syscalls, &seccomp.Syscall{
		LinuxSyscall: specs.LinuxSyscall{Names: namespaceCalls, Action: specs.ActAllow},
	})
	text, err := json.Marshal(profile)
	if err != nil {
		panic(fmt.Sprintf("a seccomp profile holds nothing that JSON lacks: %v", err))
	}
	return string(text)
})

// profiles returns the seccomp and the AppArmor profile; empty for the engine's own. AppArmor's
// forbids every mount, even in a namespace of the command's own.
func (p Platform) profiles() (seccomp, apparmor string) {
	switch {
	case p.Unconfined:
		return engine.Unconfined, engine.Unconfined
	case p.UserNamespaces:
		return namespaceProfile(), engine.Unconfined
	}
	return "", ""
}
