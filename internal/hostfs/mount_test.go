package hostfs_test

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/hostfs"
)

// mount puts a small file system at a directory of the lab's.
func (l *lab) mount(name, options string) {
	l.t.Helper()
	l.needsRoot()
	l.mkdir(name)
	if err := unix.Mount("tmpfs", l.at(name), "tmpfs", 0, options); err != nil {
		l.t.Fatalf("cannot mount: %v", err)
	}
	l.t.Cleanup(func() { must(l.t, unix.Unmount(l.at(name), unix.MNT_DETACH)) })
	must(l.t, os.Chown(l.at(name), l.uid, l.gid))
}

func TestFullDisk(t *testing.T) {
	for _, how := range []hostfs.CreateMode{hostfs.Replace, hostfs.Append, hostfs.Exclusive} {
		outer := newLab(t)
		outer.mount("small", "size=64k")
		base := outer.at("small")
		l := newLabIn(t, base)
		l.file("f", "old")
		name := "f"
		if how == hostfs.Exclusive {
			name = "g"
		}
		w, err := l.root.Create(name, how, 0o644)
		must(t, err)
		_, err = io.Copy(w, strings.NewReader(strings.Repeat("x", 1<<20)))
		l.refused(err, errs.ErrNoSpace, "the disk or quota is full")
		l.holds("f", "old")
		l.has(l.dir, "f")
		_, err = w.Commit()
		l.refused(err, errs.ErrNoSpace, "the disk or quota is full")
		l.holds("f", "old")
		must(t, l.write("f", hostfs.Append, "+"))
		l.holds("f", "old+")
	}
}

func TestOtherFileSystemInside(t *testing.T) {
	l := newLab(t)
	l.mount("a/mnt", "size=64k")
	l.file("a/mnt/f", "theirs")
	l.file("f", "ours")
	const says = `"a/mnt" is on another file system mounted inside`
	check := func(err error) {
		t.Helper()
		l.refused(err, errdefs.ErrPermissionDenied, says)
	}
	_, err := l.read("a/mnt/f")
	check(err)
	_, err = l.root.Stat("a/mnt")
	check(err)
	_, _, err = l.root.List("a/mnt", 10)
	check(err)
	check(l.write("a/mnt/f", hostfs.Replace, "x"))
	check(l.write("a/mnt/new/g", hostfs.Replace, "x"))
	check(l.root.Mkdir("a/mnt/d", false))
	check(l.root.Mkdir("a/mnt/d", true))
	check(l.root.Move("f", "a/mnt/g", true))
	check(l.root.Move("a/mnt", "b", true))
	check(l.root.Remove("a/mnt/f", false))
	check(l.root.Remove("a/mnt", true))
	if err := l.root.Remove("a", true); !errors.Is(err, errdefs.ErrPermissionDenied) {
		t.Errorf("removal across a mount: %v", err)
	}
	l.holds("a/mnt/f", "theirs")

	entries, _, err := l.root.List("a", 10)
	if err != nil || len(entries) != 1 || entries[0].Type != hostfs.Mount || entries[0].Size != 0 {
		t.Errorf("the list has %+v, %v", entries, err)
	}
}
