package hostfs_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/hostfs"
)

func TestStat(t *testing.T) {
	l := newLab(t)
	l.needsRoot()
	awkward(l)
	must(t, os.Chmod(l.at("file"), 0o640|os.ModeSetuid))
	tests := []struct {
		name string
		want hostfs.Type
	}{
		{".", hostfs.Directory}, {"dir", hostfs.Directory}, {"file", hostfs.Regular}, {"link", hostfs.Symlink},
		{"dangling", hostfs.Symlink}, {"magic", hostfs.Symlink}, {"fifo", hostfs.FIFO}, {"socket", hostfs.Socket},
		{"null", hostfs.Device}, {"deep/link", hostfs.Symlink},
	}
	for _, tt := range tests {
		info, err := l.root.Stat(tt.name)
		if err != nil || info.Type != tt.want || info.Name != tt.name[strings.LastIndexByte(tt.name, '/')+1:] {
			t.Errorf("%s: %+v, %v, want %s", tt.name, info, err, tt.want)
		}
	}
	var st unix.Stat_t
	must(t, unix.Lstat(l.at("file"), &st))
	info, err := l.root.Stat("file")
	must(t, err)
	want := hostfs.Info{
		Name: "file", Type: hostfs.Regular, Size: 7, Blocks: st.Blocks * 512, Mode: 0o640, ModTime: info.ModTime,
		ID: hostfs.ID{Dev: st.Dev, Ino: st.Ino}, Nlink: 1,
	}
	if info != want || info.ModTime.UnixNano() != st.Mtim.Nano() {
		t.Errorf("Stat is %+v, want %+v", info, want)
	}
	_, err = l.root.Stat("dirlink/canary")
	l.refused(err, errdefs.ErrPermissionDenied, `"dirlink" is a symbolic link`)
}

func TestList(t *testing.T) {
	l := newLab(t)
	names := []string{"B", "a", "c", "d\xff", "e"}
	for _, name := range names[:4] {
		l.file(name, name)
	}
	l.symlink("/etc/passwd", "e")
	for most := 1; most < 7; most++ {
		entries, more, err := l.root.List(".", most)
		must(t, err)
		var got []string
		for _, e := range entries {
			got = append(got, e.Name)
		}
		if !slices.Equal(got, names[:min(most, 5)]) || more != (most < 5) {
			t.Errorf("at most %d: %q, %v", most, got, more)
		}
	}
	l.symlink(".", "self")
	_, _, err := l.root.List("self", 9)
	l.refused(err, errdefs.ErrPermissionDenied, `"self" is a symbolic link`)
	_, _, err = l.root.List("a", 9)
	l.refused(err, errdefs.ErrInvalidArgument, `"a" is not a directory`)
	_, _, err = l.root.List(".", 0)
	l.refused(err, errdefs.ErrInvalidArgument, "at most 0")
	must(t, l.root.Mkdir("links", false))
	for i := range 1100 { // which say more than a list has
		l.symlink(strings.Repeat("x", 4000), fmt.Sprintf("links/%d", i))
	}
	if entries, more, err := l.root.List("links", 2000); err != nil || !more || len(entries) < 1000 || len(entries) > 4<<20/4000 {
		t.Errorf("%d entries, %t, %v", len(entries), more, err)
	}
}

func TestMkdir(t *testing.T) {
	l := newLab(t)
	l.file("file", "")
	l.symlink("../outside", "link")
	must(t, l.root.Mkdir("a", false))
	must(t, l.root.Mkdir("a/b/c", true))
	must(t, l.root.Mkdir("a/b/c", true))
	must(t, l.root.Mkdir(".", true))
	l.refused(l.root.Mkdir(".", false), errdefs.ErrConflict, "exists already")
	l.refused(l.root.Mkdir("a", false), errdefs.ErrConflict, `"a" exists already`)
	l.refused(l.root.Mkdir("x/y", false), errdefs.ErrNotFound, `"x" does not exist`)
	l.refused(l.root.Mkdir("file/y", true), errdefs.ErrInvalidArgument, `"file" is not a directory`)
	l.refused(l.root.Mkdir("file", true), errdefs.ErrInvalidArgument, `"file" is not a directory`)
	for _, parents := range []bool{false, true} {
		l.refused(l.root.Mkdir("link/y", parents), errdefs.ErrPermissionDenied, `"link" is a symbolic link`)
	}
	l.refused(l.root.Mkdir("link", true), errdefs.ErrPermissionDenied, `"link" is a symbolic link`)
	l.has(l.outside)
	l.has(l.dir, "a", "file", "link")
}

func TestMove(t *testing.T) {
	l := newLab(t, ".ssh", "conf/gh")
	for _, name := range []string{"a", "b", "d/f", "full/f", ".ssh/id", "conf/gh/token"} {
		l.file(name, name)
	}
	l.mkdir("empty")
	l.symlink("../outside", "link")
	refused := []struct {
		from, to string
		replace  bool
		class    error
		says     string
	}{
		{"a", "b", false, errdefs.ErrConflict, `"b" exists already`},
		{"a", "d", true, errdefs.ErrConflict, `"d" is a directory`},
		{"d", "full", true, errdefs.ErrConflict, "not empty"},
		{"d", "a", true, errdefs.ErrInvalidArgument, `"a" is not a directory`},
		{"d", "d/x", true, errdefs.ErrInvalidArgument, "into itself"},
		{"a", "a", true, errdefs.ErrInvalidArgument, "into itself"},
		{".", "x", true, errdefs.ErrInvalidArgument, "root directory"},
		{"a", ".", true, errdefs.ErrInvalidArgument, "root directory"},
		{"missing", "x", true, errdefs.ErrNotFound, `"missing" does not exist`},
		{"a", "missing/x", true, errdefs.ErrNotFound, `"missing" does not exist`},
		{"link", "x", true, errdefs.ErrPermissionDenied, `"link" is a symbolic link`},
		{"a", "link", true, errdefs.ErrPermissionDenied, `"link" is a symbolic link`},
		{"a", "link/x", true, errdefs.ErrPermissionDenied, `"link" is a symbolic link`},
		{"conf", "x", true, errdefs.ErrPermissionDenied, `"conf" would give "conf/gh" another name`},
		{".ssh/id", "x", true, errdefs.ErrPermissionDenied, "another name"},
	}
	for _, tt := range refused {
		l.refused(l.root.Move(tt.from, tt.to, tt.replace), tt.class, tt.says)
	}
	must(t, l.root.Move("a", "b", true))
	l.holds("b", "a")
	must(t, l.root.Move("d", "empty", true))
	l.holds("empty/f", "d/f")
	must(t, l.root.Move("empty", "full/e", false))
	l.holds("full/e/f", "d/f")
	l.has(l.dir, ".ssh", "b", "conf", "full", "link")
	l.has(l.outside)
}

func TestRemove(t *testing.T) {
	l := newLab(t)
	awkward(l)
	l.file("tree/a/b/c", "")
	for i := range 2000 {
		l.file(fmt.Sprint("tree/many/", i), "")
	}
	l.symlink(l.outside, "tree/a/link")
	l.symlink(l.outside+"/canary", "tree/a/b/link")
	must(t, unix.Mkfifo(l.at("tree/fifo"), 0o666))

	l.refused(l.root.Remove(".", true), errdefs.ErrInvalidArgument, "root directory")
	l.refused(l.root.Remove("tree", false), errdefs.ErrInvalidArgument, `"tree" is a directory; set recursive`)
	l.refused(l.root.Remove("dirlink/canary", true), errdefs.ErrPermissionDenied, `"dirlink" is a symbolic link`)
	l.refused(l.root.Remove("missing", true), errdefs.ErrNotFound, `"missing" does not exist`)
	for _, name := range []string{"tree", "dirlink", "way-out", "dangling", "fifo", "socket"} {
		must(t, l.root.Remove(name, true))
		if _, err := l.root.Stat(name); !errdefs.IsNotFound(err) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
	l.holds("../outside/canary", "canary")
	l.has(l.outside, "canary")
}

// A mask's mount point belongs to root and is closed to the owner, who can remove it all the same, alone or with what
// it is in, and is told why nothing can be written there.
func TestMountPointsOfMasks(t *testing.T) {
	l := newLab(t)
	l.needsRoot()
	closed := func(name string) {
		t.Helper()
		must(t, os.Mkdir(l.at(name), 0))
	}
	l.file("d/file", "")
	closed("d/.env")
	closed("d/held")
	must(t, os.WriteFile(l.at("d/held/file"), nil, 0o600))
	for _, how := range []hostfs.CreateMode{hostfs.Replace, hostfs.Append, hostfs.Exclusive} {
		l.refused(l.write("d/.env", how, "x"), errdefs.ErrConflict, `"d/.env" is kept empty, because a container hides that path: remove it`)
	}
	must(t, l.root.Remove("d/.env", true))
	must(t, l.write("d/.env", hostfs.Replace, "x"))
	l.refused(l.root.Remove("d/held", true), errdefs.ErrPermissionDenied, `"d/held" does not permit this`)
	must(t, os.Remove(l.at("d/held/file")))
	must(t, l.root.Remove("d", true))
	l.has(l.dir)
}

// TestDeepTree makes what the owner can: directories nested so deep that no path leads to the last.
func TestDeepTree(t *testing.T) {
	l := newLab(t)
	nest := func(name string, depth int) {
		l.mkdir(name)
		dir, err := unix.Open(l.at(name), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		long := strings.Repeat("d", 200)
		for range depth {
			must(t, unix.Mkdirat(dir, long, 0o755))
			must(t, unix.Fchownat(dir, long, l.uid, l.gid, 0))
			next, err := unix.Openat(dir, long, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			must(t, err)
			must(t, unix.Close(dir))
			dir = next
		}
		must(t, unix.Close(dir))
	}
	nest("deep", 400)
	must(t, l.root.Remove("deep", true))
	l.has(l.dir)
	nest("deeper", 600)
	l.refused(l.root.Remove("deeper", true), errdefs.ErrInvalidArgument, "nested deeper than 512")
	_, err := l.root.FindNames([]hostfs.ID{{Ino: 1}}, 1)
	l.refused(err, errdefs.ErrInvalidArgument, "nested deeper than 512")
}
