package hostfs

import (
	"os"
	"runtime"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// identity is what the kernel says of this thread.
func identity(t *testing.T) string {
	t.Helper()
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(status)) {
		switch key, value, _ := strings.Cut(line, ":"); key {
		case "Uid", "Gid", "Groups", "CapEff":
			lines = append(lines, key+" "+strings.Join(strings.Fields(value), " "))
		}
	}
	return strings.Join(lines, "; ")
}

func TestOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("this test needs root")
	}
	// This thread gets groups that no other has, and ends with the test.
	runtime.LockOSThread()
	if err := unix.Setgroups([]int{7, 9}); err != nil {
		t.Fatal(err)
	}
	before := identity(t)
	o, err := newOwner(1234, 5678)
	if err != nil {
		t.Fatal(err)
	}
	err = o.do(func() error {
		const want = "Uid 0 0 0 1234; Gid 0 0 0 5678; Groups; CapEff 0000000000000000"
		if got := identity(t); strings.TrimSpace(strings.ReplaceAll(got, "Groups ;", "Groups;")) != want {
			t.Errorf("as the owner: %s, want %s", got, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if after := identity(t); after != before {
		t.Errorf("before: %s, after: %s", before, after)
	}
	func() {
		defer func() { _ = recover() }()
		_ = o.do(func() error { panic("in the work") })
	}()
	if after := identity(t); after != before {
		t.Errorf("before: %s, after a panic: %s", before, after)
	}
}

func TestOthersCannotBeTheOwner(t *testing.T) {
	if os.Getuid() == 0 { // who can be anybody: this thread is a plain user's, and ends with the test
		runtime.LockOSThread()
		if err := unix.Setgroups(nil); err != nil {
			t.Fatal(err)
		}
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} { // x/sys would change all threads
			if _, _, errno := unix.RawSyscall(call, 7001, 7001, 7001); errno != 0 {
				t.Fatal(errno)
			}
		}
	}
	if _, err := newOwner(uint32(os.Getuid())+1, uint32(os.Getgid())); !cerrdefs.IsPermissionDenied(err) {
		t.Errorf("a plain user acts as somebody else: %v", err)
	}
}
