package waittest

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Hang mounts a filesystem that answers nothing until the returned function is called: nobody serves it.
func Hang(t testing.TB, dir string) (end func()) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("hung", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
		t.Fatal(err)
	}
	end = func() {
		_ = unix.Close(fd) // whoever waits gets an error
		fd = -1
	}
	t.Cleanup(func() {
		end()
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return end
}
