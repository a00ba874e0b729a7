package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/hostfs"
)

// Many calls that walk a deep /tmp at once take only as many of the service's descriptors as those that walk a home.
func TestWalksInTmpAreBounded(t *testing.T) {
	const depth, calls, most = 300, 20, 4*300 + 100
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m,nr_inodes=16k"); err != nil {
		t.Fatalf("cannot mount (this test needs root): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	bottom, faults := dir, os.WriteFile(filepath.Join(dir, "wanted"), nil, 0o600)
	for range depth {
		bottom += "/d"
		faults = errors.Join(faults, os.Mkdir(bottom, 0o755))
	}
	for i := range 8000 { // so many that the walks meet
		faults = errors.Join(faults, os.Symlink("x", filepath.Join(bottom, fmt.Sprint(i))))
	}
	faults = errors.Join(faults, os.Link(filepath.Join(dir, "wanted"), filepath.Join(dir, "another")))
	if faults != nil {
		t.Fatal(faults)
	}
	p, roots := newPlanner(t), make([]*hostfs.Root, calls) // each call opens its own
	for i := range roots {
		var err error
		if roots[i], err = p.OpenTmp(dir, dockerexec.Spec{User: "deep", UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}); err != nil {
			t.Fatal(err)
		}
		defer roots[i].Close()
	}
	info, err := roots[0].Stat("wanted")
	if err != nil {
		t.Fatal(err)
	}
	descriptors := func() int {
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(open)
	}
	var work sync.WaitGroup
	over, before, peak := make(chan struct{}), descriptors(), 0
	for _, root := range roots {
		work.Go(func() {
			if names, err := root.FindNames([]hostfs.ID{info.ID}, 10); err != nil || len(names) != 2 {
				t.Errorf("%v, %v", names, err)
			}
		})
	}
	go func() { work.Wait(); close(over) }()
	for {
		peak = max(peak, descriptors()-before)
		select {
		case <-over:
			t.Logf("%d descriptors at most", peak)
			if peak > most {
				t.Errorf("%d descriptors, want at most %d", peak, most)
			}
			return
		case <-time.After(time.Millisecond): // until it is looked at again
		}
	}
}
