package hostfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/hostfs"
)

// attack is one way to lead hostfs astray: name is used all the time, while swapped, a component of
// it, is exchanged with a symbolic link to a place outside where the rest of the name leads to the canary.
type attack struct {
	name    string
	uses    string
	swapped string
	target  string // beneath outside
}

var attacks = []attack{
	{"leaf", "leaf/f", "leaf/f", "d/f"},
	{"parent", "parent/d/f", "parent/d", "d"},
	{"ancestor", "ancestor/top/d/f", "ancestor/top", "."},
}

const canary = "canary: nobody may read or change this"

// TestAttack uses names, while others exchange their components, and counts that both really happened.
func TestAttack(t *testing.T) {
	uses := 70_000 // of each attack; half of them read and half write
	if testing.Short() {
		uses /= 20
	}
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			l := newLabIn(t, fastDir(t))
			must(t, os.MkdirAll(l.outside+"/d", 0o755))
			must(t, os.WriteFile(l.outside+"/d/f", []byte(canary), 0o666))
			must(t, os.Chmod(l.outside+"/d/f", 0o666))
			must(t, os.Chown(l.outside+"/d", l.uid, l.gid))
			before := snapshot(t, l.outside)
			l.file(a.uses, "ours")

			stop := make(chan struct{})
			swaps := make(chan int, 1)
			go func() { swaps <- l.swap(a, stop) }()
			start := time.Now()
			got := l.use(a.uses, uses)
			took := time.Since(start)
			close(stop)
			swapped := <-swaps

			t.Logf("%d swaps; reads: %d done, %d refused, %d missed; writes: %d done, %d refused, %d missed; %v",
				swapped, got.read.done, got.read.refused, got.read.missed,
				got.write.done, got.write.refused, got.write.missed, took.Round(time.Millisecond))
			if swapped < uses/20 {
				t.Errorf("only %d swaps", swapped)
			}
			for _, n := range []int64{got.read.done, got.read.refused, got.write.done, got.write.refused} {
				if n < int64(uses)/1000 {
					t.Error("the attack missed: too few uses were done, or refused")
				}
			}
			if after := snapshot(t, l.outside); after != before {
				t.Errorf("outside was:\n%s\nand is:\n%s", before, after)
			}
		})
	}
}

// fastDir is in memory where there is such a place: what takes long on a disk is not under attack here.
func fastDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "hostfs")
	if err != nil {
		return openTempDir(t)
	}
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chmod(dir, 0o755))
	return dir
}

// snapshot tells everything of a directory but the times of access.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		must(t, err)
		info, err := d.Info()
		must(t, err)
		content := ""
		if info.Mode().IsRegular() {
			bytes, err := os.ReadFile(path)
			must(t, err)
			content = string(bytes)
		}
		all.WriteString(strings.Join([]string{path, info.Mode().String(), info.ModTime().String(), content}, " ") + "\n")
		return nil
	}))
	return all.String()
}

// swap exchanges the two until stop, and answers how often. A write that comes between may replace the
// link by a file; then it is planted again.
func (l *lab) swap(a attack, stop <-chan struct{}) (swaps int) {
	place, other := l.at(a.swapped), l.at(a.swapped+".other")
	planted := l.at(a.swapped + ".planted")
	isLink := func(path string) bool {
		info, err := os.Lstat(path)
		return err == nil && info.Mode()&os.ModeSymlink != 0
	}
	for {
		select {
		case <-stop:
			return swaps
		default:
		}
		if !isLink(place) && !isLink(other) {
			err := errors.Join(os.Symlink(filepath.Join(l.outside, a.target), planted), os.Rename(planted, other))
			if err != nil {
				l.t.Error(err)
				return swaps
			}
		}
		if err := unix.Renameat2(unix.AT_FDCWD, place, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE); err != nil {
			l.t.Error(err)
			return swaps
		}
		swaps++
	}
}

type outcome struct{ done, refused, missed int64 }

// count sorts an error: refused is a link that was seen; missed is what is honest in a race too, such as
// a directory that moved before the file in it was committed.
func (o *outcome) count(t testing.TB, err error) {
	switch {
	case err == nil:
		atomic.AddInt64(&o.done, 1)
	case errdefs.IsPermissionDenied(err) && strings.Contains(err.Error(), "symbolic link"):
		atomic.AddInt64(&o.refused, 1)
	case errdefs.IsConflict(err), errdefs.IsNotFound(err):
		atomic.AddInt64(&o.missed, 1)
	default:
		t.Errorf("unexpected: %v", err)
	}
}

type outcomes struct{ read, write outcome }

// use reads and writes name so often, in turn, from several goroutines.
func (l *lab) use(name string, times int) *outcomes {
	var got outcomes
	var left atomic.Int64
	left.Store(int64(times))
	var users sync.WaitGroup
	for range 4 {
		users.Go(func() {
			for n := left.Add(-1); n >= 0; n = left.Add(-1) {
				switch n % 4 {
				case 0, 1:
					content, err := l.read(name)
					if strings.Contains(content, "canary") {
						l.t.Error("the canary was read")
					}
					got.read.count(l.t, err)
				case 2:
					got.write.count(l.t, l.write(name, hostfs.Replace, "ours"))
				case 3:
					got.write.count(l.t, l.write(name, hostfs.Append, "more"))
				}
			}
		})
	}
	users.Wait()
	return &got
}
