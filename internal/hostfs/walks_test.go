package hostfs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/internal/hostfs"
)

// A user whose files are nested deeply, and many of whose calls look for further names of a denied file at once, takes
// only so many of the service's descriptors.
func TestWalksOfOneUserAreBounded(t *testing.T) {
	const depth, calls, most = 300, 20, 4*300 + 100
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "secret"), nil, 0o600))
	must(t, os.Link(filepath.Join(dir, "secret"), filepath.Join(dir, "another")))
	bottom := dir
	for range depth {
		bottom += "/d"
		must(t, os.Mkdir(bottom, 0o755))
	}
	for i := range 500 {
		must(t, os.Symlink("x", filepath.Join(bottom, fmt.Sprint(i))))
	}
	root, err := hostfs.Open(hostfs.Config{Dir: dir, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Denied: []string{"secret"}, User: "deep", Walks: hostfs.NewWalks()})
	must(t, err)
	defer root.Close()
	ids, err := root.DeniedLinks()
	must(t, err)
	var work sync.WaitGroup
	for range calls {
		work.Go(func() {
			names, err := root.FindNames(ids, 10)
			if err != nil || len(names) != 1 || names[0] != "another" {
				t.Errorf("%v, %v", names, err)
			}
		})
	}
	over := make(chan struct{})
	go func() { work.Wait(); close(over) }()
	peak := 0
	for {
		open, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		peak = max(peak, len(open))
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

func TestUsage(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "a/b/file"), make([]byte, 3<<20), 0o600))
	must(t, os.Link(filepath.Join(dir, "a/b/file"), filepath.Join(dir, "again")))
	must(t, os.WriteFile(filepath.Join(dir, "hollow"), nil, 0o600))
	must(t, os.Truncate(filepath.Join(dir, "hollow"), 1<<40))
	must(t, os.Symlink("/", filepath.Join(dir, "out")))
	root, err := hostfs.Open(hostfs.Config{Dir: dir, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), User: "lab", Walks: hostfs.NewWalks()})
	must(t, err)
	defer root.Close()
	used, free, err := root.Usage()
	if err != nil || used < 3<<20 || used > 4<<20 || free <= 0 {
		t.Errorf("%d, %d, %v", used, free, err)
	}
}
